#include "common/run_code/client.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/judges/endpoint.h"

namespace sluice::run_code {
namespace {

constexpr long kOk = 200, kTooLarge = 413, kTooMany = 429, kOverloaded = 503;
// A thread that waits for its turn looks this often whether it is to stop.
constexpr absl::Duration kGlance = absl::Milliseconds(500);

bool IsRefusal(const absl::StatusOr<HttpReply>& reply) {
  return reply.ok() && (reply->code == kTooMany || reply->code == kOverloaded);
}

absl::StatusOr<Reply> Read(const absl::StatusOr<HttpReply>& reply) {
  if (!reply.ok()) return reply.status();
  if (reply->code == kOk) return ParseReply(reply->body);
  const std::string what =
      absl::StrCat("HTTP status ", reply->code, ": ", Utf8Prefix(Utf8Lossy(reply->body), 200));
  return reply->code == kTooLarge ? absl::InvalidArgumentError(what) : absl::UnavailableError(what);
}

Throttle::Outcome OutcomeOf(const absl::StatusOr<HttpReply>& http, const absl::Status& read) {
  if (absl::IsDeadlineExceeded(http.status())) return Throttle::Outcome::kTimedOut;
  if (absl::IsCancelled(http.status())) return Throttle::Outcome::kCancelled;
  if (IsRefusal(http)) return Throttle::Outcome::kRefused;
  // A server to which a program is too large is there, and so is one whose reply is.
  const bool answered = read.ok() || absl::IsInvalidArgument(read) || absl::IsOutOfRange(read);
  return answered ? Throttle::Outcome::kAnswered : Throttle::Outcome::kFailed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Make(Options options) {
  SLUICE_RETURN_IF_ERROR(CheckUrl(options.url, !options.key.empty()));
  return absl::WrapUnique(new Client(std::move(options)));
}

Client::Client(Options options)
    : url_(absl::StripSuffix(options.url, "/")),
      grace_(options.grace),
      http_(absl::StrCat(url_, kPath), std::move(options.key), std::move(options.ca_file),
            IsLoopback(HostOf(url_)), kMostReply),
      throttle_({.most = options.most_calls}) {}

absl::StatusOr<uint32_t> Client::Capacity() const {
  MutexLock lock(&mu_);
  SLUICE_RETURN_IF_ERROR(CheckUpLocked());
  return 2 * static_cast<uint32_t>(throttle_.window());
}

absl::Status Client::CheckUpLocked() const {
  absl::Duration wait;
  if (!throttle_.Closed(clock_->Monotonic(), &wait) || !throttle_.down()) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kResourceExhausted,
                   {.reason = "CODE_SERVER_DOWN", .hint = "it is asked again by itself"},
                   absl::StrCat("the server of sandboxes ", url_, " is down: ", last_fault_));
}

absl::Status Client::AwaitTurn(absl::Duration deadline, const rpc::Cancel& stop) {
  while (true) {
    if (stop.triggered()) return absl::CancelledError("the work for the job ends");
    MutexLock lock(&mu_);
    SLUICE_RETURN_IF_ERROR(CheckUpLocked());
    const absl::Duration now = clock_->Monotonic();
    if (now >= deadline) {
      return Error(absl::StatusCode::kResourceExhausted, "CODE_SERVER_BUSY",
                   absl::StrCat("the server of sandboxes ", url_, " bears no more than ",
                                static_cast<int>(throttle_.window()), " calls at a time now"));
    }
    absl::Duration wait;
    if (throttle_.TryBegin(now, &wait)) return absl::OkStatus();
    ended_.WaitFor(&mu_, std::min({wait, deadline - now, kGlance}));
  }
}

absl::StatusOr<Reply> Client::Run(const Request& request, absl::Duration* turn,
                                  const rpc::Cancel& stop) {
  const std::string json = ToJson(request);
  const absl::Duration longest =
      (request.cpp ? request.compile_timeout : absl::ZeroDuration()) + 2 * request.run_timeout;
  while (true) {
    const absl::Duration begin = clock_->Monotonic();
    SLUICE_RETURN_IF_ERROR(AwaitTurn(begin + *turn, stop));
    const absl::Duration had_turn = clock_->Monotonic();
    const absl::StatusOr<HttpReply> http = http_.Post(json, longest + grace_, stop);
    absl::StatusOr<Reply> reply = Read(http);
    {
      MutexLock lock(&mu_);
      if (!reply.ok()) last_fault_ = std::string(reply.status().message());
      throttle_.End(clock_->Monotonic(), OutcomeOf(http, reply.status()), /*tokens=*/0,
                    http.ok() ? http->retry_after : absl::ZeroDuration());
    }
    ended_.NotifyAll();
    // The time of a call that was refused was a wait, too.
    *turn -= (IsRefusal(http) ? clock_->Monotonic() : had_turn) - begin;
    if (IsRefusal(http)) continue;
    if (reply.ok() || absl::IsCancelled(http.status())) return reply;
    if (absl::IsOutOfRange(reply.status())) return reply;
    if (absl::IsInvalidArgument(reply.status())) {
      return Annotate(reply.status(),
                      absl::StrCat("the server of sandboxes ", url_, " refuses the program"));
    }
    return Error(absl::StatusCode::kUnavailable, "CODE_SERVER_FAULT",
                 absl::StrCat("the server of sandboxes ", url_, ": ", reply.status().message()));
  }
}

}  // namespace sluice::run_code
