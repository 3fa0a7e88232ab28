#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/shm/segment.h"
#include "common/shm/socket.h"
#include "services/queue/core/event.h"

namespace sluice::queue {
class JobTable;

// The socket where clients on the same host attach: a client names its job, worker and incarnation,
// is checked as in any call, and gets a buffer of its own, to write what it will Put, and read-only
// segments of its job alone. What a client does in memory can harm nobody: the queue copies out of
// its buffer once, checking the CRC, before anything is acknowledged.
//
// Thread-safe. Owns one thread, `attach`.
class AttachServer {
 public:
  // Of each client; its pages are taken as it touches them.
  static constexpr uint64_t kBufferBytes = 64 << 20;
  static constexpr size_t kMostSessions = 256;

  // A client that attached; it ends with its connection, and its memory with the last stream that
  // uses it.
  struct Session {
    std::string id, job;
    Caller caller;
    shm::Segment buffer;
  };

  // `jobs` outlives it.
  explicit AttachServer(JobTable* jobs) : jobs_(jobs) {}
  ~AttachServer() { Stop(); }

  // Listens for the clients of the gRPC server at `address`. ALREADY_EXISTS: another process does.
  absl::Status Start(const std::string& address);
  // Ends all sessions. Idempotent.
  void Stop();

  // Null: unknown, or of another worker or job.
  std::shared_ptr<const Session> Find(absl::string_view id, absl::string_view job,
                                      const Caller& caller) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Client {
    shm::Socket socket;
    std::string session;  // Empty: none yet.
  };
  void Loop();
  // False: the connection ends.
  bool Serve(Client& client) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Answer(Client& client, const std::string& packet, std::string* response, shm::Fd* fd)
      ABSL_LOCKS_EXCLUDED(mu_);
  void End(const Client& client) ABSL_LOCKS_EXCLUDED(mu_);

  JobTable* const jobs_;
  std::unique_ptr<shm::Socket> listening_;
  shm::Fd stop_;  // An eventfd.
  std::thread thread_;

  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<const Session>, std::less<>> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
