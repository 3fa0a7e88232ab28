#include "common/redis/redis.h"

#include <hiredis/hiredis.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/redis/socket.h"

namespace sluice::redis {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// A Redis that takes less than this in a second counts as silent.
constexpr double kSlowestBytesPerSecond = 4 << 20;

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

Connection::Connection(Endpoint endpoint, absl::Duration timeout)
    : endpoint_(std::move(endpoint)), timeout_(timeout) {}

Connection::~Connection() = default;

void Connection::FreeReader::operator()(redisReader* reader) const { redisReaderFree(reader); }

void Connection::Close() {
  MutexLock lock(&mu_);
  socket_ = nullptr;
}

absl::Status Connection::CloseWithError(absl::string_view what, const absl::Status& why) {
  Close();
  return Annotate(why, absl::StrCat("Redis at ", endpoint_.str(), ": ", what));
}

absl::Status Connection::Connect() {
  const absl::Duration deadline = Clock::Real()->Monotonic() + timeout_;
  reader_.reset(redisReaderCreate());
  {
    MutexLock lock(&mu_);
    socket_ = nullptr;
    if (broken_) return absl::CancelledError("the connection was ended by Break()");
    socket_ = std::make_unique<Socket>();
  }
  // This waits, so it runs without the lock.
  if (absl::Status status = socket_->Connect(endpoint_, deadline); !status.ok())
    return CloseWithError("no connection", status);

  std::vector<Command> hello;
  if (!endpoint_.password.empty()) hello.push_back({"AUTH", endpoint_.password.Reveal()});
  // A Sentinel knows no SELECT. A connection begins with database 0.
  if (endpoint_.db != 0) hello.push_back({"SELECT", absl::StrCat(endpoint_.db)});
  hello.push_back({"PING"});

  SLUICE_ASSIGN_OR_RETURN(const std::vector<Reply> replies, RunUntil(deadline, hello));
  for (const Reply& reply : replies) {
    // The first refusal closes the connection.
    if (reply.kind != Reply::Kind::kError) continue;
    Close();
    return absl::FailedPreconditionError(
        absl::StrCat("Redis at ", endpoint_.str(), " refuses: ", reply.text));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Reply>> Connection::Run(absl::Span<const Command> commands) {
  size_t bytes = 0;
  for (const Command& command : commands) {
    for (const std::string& argument : command) bytes += argument.size();
  }
  const absl::Duration limit =
      timeout_ + absl::Seconds(static_cast<double>(bytes) / kSlowestBytesPerSecond);
  return RunUntil(Clock::Real()->Monotonic() + limit, commands);
}

absl::StatusOr<std::vector<Reply>> Connection::RunUntil(absl::Duration deadline,
                                                        absl::Span<const Command> commands) {
  if (socket_ == nullptr)
    return CloseWithError("no command sent", absl::UnavailableError("not connected"));
  // All commands go out before the first answer is read.
  std::string bytes;
  for (const Command& command : commands) {
    std::vector<const char*> words;
    std::vector<size_t> sizes;
    for (const std::string& word : command)
      words.push_back(word.data()), sizes.push_back(word.size());
    char* formatted = nullptr;
    const int size = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()),
                                            words.data(), sizes.data());
    SLUICE_CHECK_MSG(size > 0, "no memory for a command to Redis");
    bytes.append(formatted, size);
    redisFreeCommand(formatted);
  }
  if (absl::Status sent = socket_->Write(bytes, deadline); !sent.ok())
    return CloseWithError("no command sent", sent);

  std::vector<Reply> replies;
  for (size_t i = 0; i < commands.size(); ++i) {
    absl::StatusOr<Reply> reply = ReadReply(deadline);
    if (!reply.ok()) return CloseWithError("no answer", reply.status());
    replies.push_back(*std::move(reply));
  }
  return replies;
}

absl::StatusOr<Reply> Connection::ReadReply(absl::Duration deadline) {
  char bytes[kReadBytes];
  while (true) {
    void* answer = nullptr;
    if (redisReaderGetReply(reader_.get(), &answer) != REDIS_OK)
      return absl::UnavailableError(absl::StrCat("what it says is not Redis: ", reader_->errstr));
    if (answer != nullptr) {
      const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(answer));
      return Convert(*reply);
    }
    SLUICE_ASSIGN_OR_RETURN(const size_t got, socket_->Read(bytes, sizeof(bytes), deadline));
    if (redisReaderFeed(reader_.get(), bytes, got) != REDIS_OK)
      return absl::UnavailableError(absl::StrCat("its answer: ", reader_->errstr));
  }
}

void Connection::Break() {
  MutexLock lock(&mu_);
  broken_ = true;
  if (socket_ != nullptr) socket_->Shutdown();
}

}  // namespace sluice::redis
