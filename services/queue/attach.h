#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "common/shm/segment.h"
#include "common/shm/socket.h"
#include "services/queue/core/event.h"

namespace sluice::queue {
class JobTable;

// The unix socket where clients on the same host attach to the queue's shared memory. A client
// names its job, worker and incarnation, which are checked as in any call. It gets a buffer of its
// own, into which it writes what it will Put, and read-only segments of its own job. A client
// cannot harm others by what it does in memory, because the queue copies the bytes out of its
// buffer once, with a check of their CRC, before it acknowledges anything.
//
// Thread-safe. Owns one thread, `attach`.
class AttachServer {
 public:
  // Size of each client's buffer. Memory is used only for the pages that the client touches.
  static constexpr uint64_t kBufferBytes = 64 << 20;
  static constexpr size_t kMostSessions = 256;

  // An attached client. The session ends with the client's connection; its buffer lives as long as
  // a stream uses it.
  struct Session {
    std::string id, job;
    Caller caller;
    shm::Segment buffer;
  };

  // `jobs` outlives the server.
  explicit AttachServer(JobTable* jobs) : jobs_(jobs) {}
  ~AttachServer() { Stop(); }

  // Listens for clients of the gRPC server at `address`. ALREADY_EXISTS: another process listens
  // for them.
  absl::Status Start(const std::string& address);
  // Ends all sessions. Idempotent.
  void Stop();

  // Finds a session. Null if it is unknown, or belongs to another worker or job.
  std::shared_ptr<const Session> Find(absl::string_view id, absl::string_view job,
                                      const Caller& caller) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Client {
    shm::Socket socket;
    std::string session;  // Empty before the client has attached.
  };
  void ServeLoop();
  // Receives a packet and answers it. False if the connection has ended.
  bool ServeClient(Client& client) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Answer(Client& client, const std::string& packet, std::string* response, Fd* fd)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndSession(const Client& client) ABSL_LOCKS_EXCLUDED(mu_);

  JobTable* const jobs_;
  std::unique_ptr<shm::Socket> listening_;
  Fd stop_;  // An eventfd that wakes the thread to end it.
  std::thread thread_;

  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<const Session>, std::less<>> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::queue
