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

struct redisContext;

// A simple client connection to one Redis server, over hiredis.
namespace sluice::redis {

struct Endpoint {
  std::string host = "127.0.0.1";
  int port = 6379;
  int db = 0;
  // Empty: none. It is never part of a URL, because URLs appear in process lists and logs.
  std::string password;

  std::string str() const;  // HOST:PORT/DB, for people.
};

// Parses redis://HOST[:PORT][/DB], with an IPv6 host in brackets.
// INVALID_ARGUMENT BAD_URL: it has another form, or contains a user or password.
absl::StatusOr<Endpoint> ParseUrl(absl::string_view url);

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

// Not thread-safe, except Break().
class Connection {
 public:
  // Each wait, for the connection or for the next answer, ends after `timeout`.
  explicit Connection(Endpoint endpoint, absl::Duration timeout = absl::Seconds(2));
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Closes the old connection if there is one, connects, authenticates and selects the database.
  // UNAVAILABLE: no server answers there, or not in time.
  // FAILED_PRECONDITION: Redis refuses (password, database, still loading, ..); the message is its
  // own.
  // CANCELLED: Break() was called.
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mu_);

  // Sends all commands at once and reads an answer to each. An error that Redis answers is a Reply.
  // UNAVAILABLE: there is no connection, it broke, or no answer came in time. The connection is
  // closed then, and any of the commands may have been executed.
  absl::StatusOr<std::vector<Reply>> Run(absl::Span<const Command> commands)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends a wait for an answer at once, and makes later calls of Connect() and Run() fail. A
  // Connect() that has no connection yet may still wait for its timeout. May be called from any
  // thread.
  void Break() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Closes the connection, and returns the error that says why it is lost.
  absl::Status CloseWithError(absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);
  // CANCELLED if Break() was called, else OK.
  absl::Status CheckNotBroken() ABSL_LOCKS_EXCLUDED(mu_);

  const Endpoint endpoint_;
  const absl::Duration timeout_;
  Mutex mu_;  // Held while the socket is opened or closed, never during a wait.
  // Null without a connection. Only the user's thread writes it, and does so under mu_, so that
  // Break() may read it under mu_ on another thread. The user's thread reads it without mu_.
  redisContext* context_ = nullptr;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::redis
