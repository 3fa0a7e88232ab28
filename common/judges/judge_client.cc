#include "common/judges/judge_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json_depth.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kQuoted = 200;  // Bytes of a foreign reply that an error quotes.
constexpr long kOk = 200, kTooMany = 429, kOverloaded = 503;
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

uint64_t TokensOf(const nlohmann::json& reply) {
  const nlohmann::json* const tokens = Find(Find(&reply, "usage"), "total_tokens");
  return tokens != nullptr && tokens->is_number_unsigned() ? tokens->get<uint64_t>() : 0;
}

// The text of choices[0].message.content.
absl::StatusOr<std::string> TextOf(const nlohmann::json& reply) {
  const nlohmann::json* const choices = Find(&reply, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty())
    return absl::UnavailableError("its reply has no `choices`");
  const nlohmann::json* const reason = Find(&(*choices)[0], "finish_reason");
  if (reason != nullptr && *reason == "length")
    return absl::UnavailableError("its reply is longer than max_reply of judges.yaml");
  const nlohmann::json* const content = Find(Find(&(*choices)[0], "message"), "content");
  if (content == nullptr || !content->is_string())
    return absl::UnavailableError("its reply has no text in choices[0].message.content");
  return content->get<std::string>();
}

Throttle::Options LimitsOf(const JudgeConfig& config) {
  return {.most = config.max_in_flight,
          .calls_per_minute = config.calls_per_minute,
          .tokens = config.tokens};
}

}  // namespace

JudgeClient::JudgeClient(JudgeConfig config)
    : config_(std::move(config)),
      http_(config_.url, config_.key, config_.ca_file),
      throttle_(LimitsOf(config_)) {}

absl::Status JudgeClient::CheckBudget() const {
  MutexLock lock(&mu_);
  if (!throttle_.spent()) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kResourceExhausted,
                   {.reason = "JUDGE_BUDGET",
                    .hint = "raise `tokens` in judges.yaml and start the reward daemon again"},
                   absl::StrCat("judge ", config_.name, " has used ", throttle_.used_tokens(),
                                " tokens; the operator's limit is ", *config_.tokens));
}

absl::Status JudgeClient::AwaitTurn(absl::Duration deadline, const rpc::Cancel& stop) {
  while (true) {
    SLUICE_RETURN_IF_ERROR(CheckBudget());
    if (stop.triggered()) return absl::CancelledError("the work for the job ends");
    MutexLock lock(&mu_);
    const absl::Duration now = clock_->Monotonic();
    absl::Duration wait;
    if (throttle_.TryBegin(now, &wait)) return absl::OkStatus();
    if (now >= deadline) {
      return Error(absl::StatusCode::kResourceExhausted, "JUDGE_BUSY",
                   absl::StrCat("judge ", config_.name, " bears no more than ",
                                static_cast<int>(throttle_.window()), " calls at a time now, and ",
                                throttle_.running(), " are under way"));
    }
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
    const absl::StatusOr<HttpReply> reply = http_.Post(json, deadline - clock_->Monotonic(), stop);
    const bool answered = reply.ok() && reply->code == kOk;
    const bool refused = reply.ok() && (reply->code == kTooMany || reply->code == kOverloaded);
    const nlohmann::json parsed = answered ? ParseReply(reply->body) : nlohmann::json();
    {
      MutexLock lock(&mu_);
      throttle_.End(clock_->Monotonic(),
                    answered  ? Throttle::Outcome::kAnswered
                    : refused ? Throttle::Outcome::kRefused
                              : Throttle::Outcome::kFailed,
                    TokensOf(parsed), refused ? reply->retry_after : absl::ZeroDuration());
    }
    ended_.NotifyAll();
    if (refused) continue;
    if (absl::IsCancelled(reply.status())) return reply.status();
    if (!reply.ok()) return Fault(config_.name, reply.status().message());
    if (!answered) {
      return Fault(config_.name, absl::StrCat("HTTP status ", reply->code, " of ", config_.url,
                                              ": ", Utf8Prefix(Utf8Lossy(reply->body), kQuoted)));
    }
    absl::StatusOr<std::string> text = TextOf(parsed);
    if (!text.ok()) return Fault(config_.name, text.status().message());
    return text;
  }
}

}  // namespace sluice
