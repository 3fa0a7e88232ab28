#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/redis/endpoint.h"

struct redisReader;

// A simple client connection to one Redis server. hiredis formats the commands and parses the
// answers.
namespace sluice::redis {

// The answer of Redis to one command. Which of the fields is set depends on `kind`.
struct Reply {
  enum class Kind { kNil, kText, kNumber, kList, kError };
  Kind kind = Kind::kNil;
  // The text (kText), or the error message (kError), whose first word is a code such as "NOAUTH" or
  // "OOM".
  std::string text;
  int64_t number = 0;
  std::vector<Reply> list;
};

// The words of one command, such as {"GET", "key"}.
using Command = std::vector<std::string>;

class Socket;

// Not thread-safe, except Break().
class Connection {
 public:
  // Each call of Connect() or Run() ends after `timeout`, apart from the time to resolve the host.
  // Run() takes longer for megabytes: a second more for each 4 MiB that it sends.
  explicit Connection(Endpoint endpoint, absl::Duration timeout = absl::Seconds(2));
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Closes the old connection if there is one, connects, authenticates and selects the database.
  // UNAVAILABLE: no server answers there, or not in time.
  // FAILED_PRECONDITION: Redis refuses (password, database, still loading, ..), and the message is
  // its own; or its certificate is not accepted (Socket::Connect()).
  // CANCELLED: Break() was called.
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mu_);

  // Sends all commands at once and reads an answer to each. An error that Redis answers is a Reply.
  // UNAVAILABLE: there is no connection, it broke, or no answer came in time. The connection is
  // closed then, and any of the commands may have been executed.
  absl::StatusOr<std::vector<Reply>> Run(absl::Span<const Command> commands)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends a wait at once, and makes later calls of Connect() and Run() fail. May be called from any
  // thread.
  void Break() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<std::vector<Reply>> RunUntil(absl::Duration deadline,
                                              absl::Span<const Command> commands)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Reply> ReadReply(absl::Duration deadline);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the connection, and returns `why` with what it was about.
  absl::Status CloseWithError(absl::string_view what, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mu_);

  struct FreeReader {
    void operator()(redisReader* reader) const;
  };

  const Endpoint endpoint_;
  const absl::Duration timeout_;
  std::unique_ptr<redisReader, FreeReader> reader_;  // Parses answers. Made anew by Connect().
  Mutex mu_;  // Held while the socket is made or destroyed, never during a wait.
  // Null without a connection. Only the user's thread writes it, and does so under mu_, so that
  // Break() may read it under mu_ on another thread. The user's thread reads it without mu_.
  std::unique_ptr<Socket> socket_;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::redis
