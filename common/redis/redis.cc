#include "common/redis/redis.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace sluice::redis {
namespace {

absl::Status BadUrl(absl::string_view why) {
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "BAD_URL", .hint = "write it as redis://HOST[:PORT][/DB]"},
                   absl::StrCat("Redis URL: ", why));
}

Reply Convert(const redisReply& from) {
  Reply reply;
  switch (from.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
      reply.kind = from.type == REDIS_REPLY_ERROR ? Reply::Kind::kError : Reply::Kind::kText;
      reply.text.assign(from.str, from.len);
      break;
    case REDIS_REPLY_INTEGER:
      reply.kind = Reply::Kind::kNumber;
      reply.number = from.integer;
      break;
    case REDIS_REPLY_ARRAY:
      reply.kind = Reply::Kind::kList;
      for (size_t i = 0; i < from.elements; ++i) reply.list.push_back(Convert(*from.element[i]));
      break;
    default: break;
  }
  return reply;
}

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
}  // namespace

std::string Endpoint::str() const {
  return absl::StrCat(absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host, ":", port,
                      "/", db);
}

absl::StatusOr<Endpoint> ParseUrl(absl::string_view url) {
  if (!absl::ConsumePrefix(&url, "redis://")) return BadUrl("it does not begin with redis://");
  // A password in the URL would appear in process lists and logs.
  if (absl::StrContains(url, '@'))
    return BadUrl("it carries a user or password; give the password by file or environment");
  Endpoint endpoint;
  if (const size_t slash = url.find('/'); slash != url.npos) {
    const absl::string_view db = url.substr(slash + 1);
    if (!db.empty() && (!absl::SimpleAtoi(db, &endpoint.db) || endpoint.db < 0))
      return BadUrl(absl::StrCat("database \"", db, "\" is not a whole number of 0 or more"));
    url = url.substr(0, slash);
  }

  absl::string_view host = url, port;
  if (absl::StartsWith(url, "[")) {
    const size_t end = url.find(']');
    if (end == url.npos) return BadUrl("the [ of its host is not closed");
    host = url.substr(1, end - 1);
    port = url.substr(end + 1);
    if (!port.empty() && !absl::ConsumePrefix(&port, ":"))
      return BadUrl(absl::StrCat("\"", port, "\" follows the host; wanted: :PORT"));
  } else if (const size_t colon = url.rfind(':'); colon != url.npos) {
    host = url.substr(0, colon);
    port = url.substr(colon + 1);
    if (port.empty()) return BadUrl("its port is empty");
  }

  if (host.empty()) return BadUrl("it names no host");
  if (!port.empty() &&
      (!absl::SimpleAtoi(port, &endpoint.port) || endpoint.port < 1 || endpoint.port > 65535)) {
    return BadUrl(absl::StrCat("port \"", port, "\" is not within 1 to 65535"));
  }
  endpoint.host = std::string(host);
  return endpoint;
}

Connection::Connection(Endpoint endpoint, absl::Duration timeout)
    : endpoint_(std::move(endpoint)), timeout_(timeout) {}

Connection::~Connection() {
  if (context_ != nullptr) redisFree(context_);
}

absl::Status Connection::CloseWithError(absl::string_view what) {
  const std::string why = context_ == nullptr           ? "not connected"
                          : context_->errstr[0] != '\0' ? context_->errstr
                                                        : "closed";
  MutexLock lock(&mu_);
  if (context_ != nullptr) redisFree(context_);
  context_ = nullptr;
  return absl::UnavailableError(absl::StrCat("Redis at ", endpoint_.str(), ": ", what, ": ", why));
}

absl::Status Connection::CheckNotBroken() {
  MutexLock lock(&mu_);
  return broken_ ? absl::CancelledError("the connection was ended by Break()") : absl::OkStatus();
}

absl::Status Connection::Connect() {
  {
    MutexLock lock(&mu_);
    if (context_ != nullptr) redisFree(context_);
    context_ = nullptr;
  }
  // Break() may have been called before there was a socket to shut down.
  SLUICE_RETURN_IF_ERROR(CheckNotBroken());
  const timeval timeout = absl::ToTimeval(timeout_);
  // This may wait, so it runs without the lock.
  redisContext* context = redisConnectWithTimeout(endpoint_.host.c_str(), endpoint_.port, timeout);
  if (context == nullptr)
    return absl::ResourceExhaustedError("no memory for a connection to Redis");
  {
    MutexLock lock(&mu_);
    context_ = context;
  }
  if (context_->err != 0 || redisSetTimeout(context_, timeout) != REDIS_OK)
    return CloseWithError("no connection");
  redisEnableKeepAlive(context_);
  SLUICE_RETURN_IF_ERROR(CheckNotBroken());

  std::vector<Command> hello;
  if (!endpoint_.password.empty()) hello.push_back({"AUTH", endpoint_.password});
  hello.push_back({"SELECT", absl::StrCat(endpoint_.db)});
  hello.push_back({"PING"});

  SLUICE_ASSIGN_OR_RETURN(const std::vector<Reply> replies, Run(hello));
  for (const Reply& reply : replies) {
    // The first refusal closes the connection.
    if (reply.kind != Reply::Kind::kError) continue;
    MutexLock lock(&mu_);
    redisFree(context_);
    context_ = nullptr;
    return absl::FailedPreconditionError(
        absl::StrCat("Redis at ", endpoint_.str(), " refuses: ", reply.text));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Reply>> Connection::Run(absl::Span<const Command> commands) {
  if (context_ == nullptr) return CloseWithError("no command sent");
  // All commands go out before the first answer is read.
  for (const Command& command : commands) {
    std::vector<const char*> words;
    std::vector<size_t> sizes;
    for (const std::string& word : command)
      words.push_back(word.data()), sizes.push_back(word.size());
    if (redisAppendCommandArgv(context_, static_cast<int>(words.size()), words.data(),
                               sizes.data()) != REDIS_OK)
      return CloseWithError("no command sent");
  }

  std::vector<Reply> replies;
  for (size_t i = 0; i < commands.size(); ++i) {
    void* answer = nullptr;
    if (redisGetReply(context_, &answer) != REDIS_OK || answer == nullptr)
      return CloseWithError("no answer");
    const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(answer));
    replies.push_back(Convert(*reply));
  }
  return replies;
}

void Connection::Break() {
  MutexLock lock(&mu_);
  broken_ = true;
  if (context_ != nullptr && context_->fd >= 0) shutdown(context_->fd, SHUT_RDWR);
}

}  // namespace sluice::redis
