#include "common/judges/judge_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kQuoted = 200;  // Bytes of a foreign reply that an error quotes.
constexpr long kOk = 200, kBadRequest = 400, kTooLarge = 413, kUnprocessable = 422, kTooMany = 429,
               kOverloaded = 503;
constexpr uint64_t kBytesPerToken = 4;  // Of a request whose tokens nobody counts.
// A thread that waits for its turn looks this often whether it is to stop.
constexpr absl::Duration kGlance = absl::Milliseconds(500);

absl::Status Fault(const std::string& judge, absl::string_view what) {
  return Error(absl::StatusCode::kUnavailable, "JUDGE_FAULT",
               absl::StrCat("judge ", judge, ": ", what));
}

nlohmann::json ParseReply(const std::string& body) {
  if (JsonDepth(body) > kMaxDepth) return nullptr;
  return nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
}

const nlohmann::json* Find(const nlohmann::json* object, const char* key) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &*found;
}

absl::Status ContentError(absl::string_view what) {
  return Error(absl::StatusCode::kOutOfRange, "JUDGE_CONTENT", what);
}

// The text of choices[0].message.content.
absl::StatusOr<std::string> TextOf(const nlohmann::json& reply) {
  const nlohmann::json* const choices = Find(&reply, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty())
    return absl::UnavailableError("its reply has no `choices`");
  const nlohmann::json* const reason = Find(&(*choices)[0], "finish_reason");
  if (reason != nullptr && *reason == "length")
    return ContentError("its reply is longer than max_reply of judges.yaml");
  if (reason != nullptr && *reason == "content_filter")
    return ContentError("its provider filters this text");
  const nlohmann::json* const content = Find(Find(&(*choices)[0], "message"), "content");
  if (content == nullptr || !content->is_string())
    return absl::UnavailableError("its reply has no text in choices[0].message.content");
  return content->get<std::string>();
}

// A foreign text for a message, without the key, which a server may echo.
std::string Quoted(const std::string& body, const Secret& key) {
  std::string text(Utf8Prefix(Utf8Lossy(body), kQuoted));
  return key.empty() ? text : absl::StrReplaceAll(text, {{key.Reveal(), "(key)"}});
}

bool IsRefusal(long code) { return code == kTooMany || code == kOverloaded; }

Throttle::Outcome OutcomeOf(const absl::StatusOr<HttpReply>& reply, const absl::Status& text) {
  if (absl::IsDeadlineExceeded(reply.status())) return Throttle::Outcome::kTimedOut;
  if (absl::IsCancelled(reply.status())) return Throttle::Outcome::kCancelled;
  if (reply.ok() && IsRefusal(reply->code)) return Throttle::Outcome::kRefused;
  // A judge that cannot judge this text is there.
  return text.ok() || absl::IsOutOfRange(text) ? Throttle::Outcome::kAnswered
                                               : Throttle::Outcome::kFailed;
}

Throttle::Options LimitsOf(const JudgeConfig& config) {
  return {.most = config.max_in_flight,
          .calls_per_minute = config.calls_per_minute,
          .tokens = config.tokens};
}

}  // namespace

JudgeClient::JudgeClient(JudgeConfig config)
    : config_(std::move(config)),
      http_(config_.url, config_.key, config_.ca_file, config_.loopback),
      throttle_(LimitsOf(config_)) {}

std::string JudgeClient::Identity() const {
  return absl::StrCat(config_.name, " ", config_.url, " ", config_.model, " ", config_.temperature,
                      " ", config_.max_reply);
}

uint32_t JudgeClient::Capacity() const {
  MutexLock lock(&mu_);
  return 2 * static_cast<uint32_t>(throttle_.window());
}

absl::Status JudgeClient::CheckReady() const {
  MutexLock lock(&mu_);
  return CheckReadyLocked();
}

absl::Status JudgeClient::CheckReadyLocked() const {
  if (throttle_.spent()) {
    return ErrorWith(absl::StatusCode::kResourceExhausted,
                     {.reason = "JUDGE_BUDGET",
                      .hint = "raise `tokens` in judges.yaml and start the reward daemon again"},
                     absl::StrCat("judge ", config_.name, " has used ", throttle_.used_tokens(),
                                  " tokens; the operator's limit is ", *config_.tokens));
  }
  absl::Duration wait;
  if (throttle_.Closed(clock_->Monotonic(), &wait) && throttle_.down()) {
    return ErrorWith(absl::StatusCode::kResourceExhausted,
                     {.reason = "JUDGE_BUSY", .hint = "it is asked again by itself"},
                     absl::StrCat("judge ", config_.name, " is down: ", last_fault_));
  }
  return absl::OkStatus();
}

absl::Status JudgeClient::AwaitTurn(absl::Duration deadline, const rpc::Cancel& stop) {
  while (true) {
    if (stop.triggered()) return absl::CancelledError("the work for the job ends");
    MutexLock lock(&mu_);
    SLUICE_RETURN_IF_ERROR(CheckReadyLocked());
    const absl::Duration now = clock_->Monotonic();
    if (now >= deadline) {
      return Error(absl::StatusCode::kResourceExhausted, "JUDGE_BUSY",
                   absl::StrCat("judge ", config_.name, " bears no more than ",
                                static_cast<int>(throttle_.window()), " calls at a time now, and ",
                                throttle_.running(), " are under way"));
    }
    absl::Duration wait;
    if (throttle_.TryBegin(now, &wait)) return absl::OkStatus();
    ended_.WaitFor(&mu_, std::min({wait, deadline - now, kGlance}));
  }
}

absl::StatusOr<std::string> JudgeClient::Ask(const std::string& system, const std::string& user,
                                             absl::Duration timeout, const rpc::Cancel& stop) {
  const nlohmann::json request = {
      {"model", config_.model},
      {"messages",
       {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", user}}}},
      {"temperature", config_.temperature},
      {config_.reply_limit_field, config_.max_reply}};
  const std::string json = request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);

  const absl::Duration deadline = clock_->Monotonic() + timeout;
  while (true) {
    SLUICE_RETURN_IF_ERROR(AwaitTurn(deadline, stop));
    const absl::StatusOr<HttpReply> reply = http_.Post(json, timeout, stop);
    const nlohmann::json parsed =
        reply.ok() && reply->code == kOk ? ParseReply(reply->body) : nlohmann::json();
    const absl::StatusOr<std::string> text = Read(reply, parsed);
    {
      MutexLock lock(&mu_);
      if (absl::IsUnavailable(text.status())) last_fault_ = std::string(text.status().message());
      throttle_.End(clock_->Monotonic(), OutcomeOf(reply, text.status()),
                    TokensOf(reply, parsed, json.size()),
                    reply.ok() ? reply->retry_after : absl::ZeroDuration());
    }
    ended_.NotifyAll();
    if (reply.ok() && IsRefusal(reply->code)) continue;
    return text;
  }
}

absl::StatusOr<std::string> JudgeClient::Read(const absl::StatusOr<HttpReply>& reply,
                                              const nlohmann::json& parsed) const {
  if (absl::IsCancelled(reply.status())) return reply.status();
  if (!reply.ok()) return Fault(config_.name, reply.status().message());
  if (reply->code != kOk) {
    const std::string what = absl::StrCat("HTTP status ", reply->code, " of ", config_.url, ": ",
                                          Quoted(reply->body, config_.key));
    const bool content =
        reply->code == kBadRequest || reply->code == kTooLarge || reply->code == kUnprocessable;
    return content ? ContentError(absl::StrCat("judge ", config_.name, ": ", what))
                   : Fault(config_.name, what);
  }
  absl::StatusOr<std::string> text = TextOf(parsed);
  if (absl::IsUnavailable(text.status())) return Fault(config_.name, text.status().message());
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("judge ", config_.name));
  return text;
}

uint64_t JudgeClient::TokensOf(const absl::StatusOr<HttpReply>& reply, const nlohmann::json& parsed,
                               size_t request_bytes) const {
  const nlohmann::json* const tokens = Find(Find(&parsed, "usage"), "total_tokens");
  if (tokens != nullptr && tokens->is_number_unsigned()) return tokens->get<uint64_t>();
  // A call that was answered with an error used none. Of others nobody says, so that they count as
  // the most that they can have used.
  if (reply.ok() && reply->code != kOk) return 0;
  if (absl::IsUnavailable(reply.status())) return 0;  // There was no connection.
  return request_bytes / kBytesPerToken + config_.max_reply;
}

}  // namespace sluice
