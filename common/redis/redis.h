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

// A plain connection to one Redis server, over hiredis.
namespace sluice::redis {

struct Endpoint {
  std::string host = "127.0.0.1";
  int port = 6379;
  int db = 0;
  // Empty: none. Never part of a URL: those end up in process lists and logs.
  std::string password;

  std::string str() const;  // HOST:PORT/DB, for people.
};

// redis://HOST[:PORT][/DB], an IPv6 host in brackets. INVALID_ARGUMENT: another form, or one that
// carries a password.
absl::StatusOr<Endpoint> ParseUrl(absl::string_view url);

// What Redis answered to one command.
struct Reply {
  enum class Kind { kNil, kText, kNumber, kList, kError };
  Kind kind = Kind::kNil;
  // Of kText; of kError its message, whose first word is its code ("NOAUTH", "OOM", ..).
  std::string text;
  int64_t number = 0;
  std::vector<Reply> list;
};

using Command = std::vector<std::string>;

// One user at a time, but for Break().
class Connection {
 public:
  // Each wait, for a connection or for the next answer, ends after `timeout`.
  explicit Connection(Endpoint endpoint, absl::Duration timeout = absl::Seconds(2));
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Connects anew, authenticates, selects the database. UNAVAILABLE: nobody answers there, or not
  // in time. FAILED_PRECONDITION: Redis refuses (password, database, still loading, ..); the
  // message is its own.
  absl::Status Connect() ABSL_LOCKS_EXCLUDED(mu_);

  // Sends all commands at once and reads an answer to each; an error that Redis answers is a Reply.
  // UNAVAILABLE: not connected, broken, or silent for too long; the connection is closed then, and
  // any of the commands may have been carried out.
  absl::StatusOr<std::vector<Reply>> Run(absl::Span<const Command> commands)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Ends a wait under way, and makes later Connect() and Run() fail at once. From any thread.
  void Break() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Lost(absl::string_view what) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Broken() ABSL_LOCKS_EXCLUDED(mu_);

  const Endpoint endpoint_;
  const absl::Duration timeout_;
  Mutex mu_;                         // Held when the socket comes or goes, never in a wait.
  redisContext* context_ = nullptr;  // Of the user; written under mu_ too.
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::redis
