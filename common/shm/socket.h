#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/shm/segment.h"

namespace sluice::shm {

// A unix socket for packets that may carry a file descriptor. Its name is abstract: it belongs to
// the network namespace, as a loopback address does, leaves no file behind, and ends with its
// process. Both ends must belong to the same user. Not thread-safe.
class Socket {
 public:
  // Listens under `name`, without blocking.
  // INVALID_ARGUMENT: the name is too long.
  // ALREADY_EXISTS: another process listens there.
  static absl::StatusOr<Socket> Listen(absl::string_view name);
  // Connects to the process that listens under `name`.
  // UNAVAILABLE: no process listens there.
  // PERMISSION_DENIED: it belongs to another user.
  static absl::StatusOr<Socket> Connect(absl::string_view name);
  // Returns a connection that waits to be accepted.
  // UNAVAILABLE: there is none.
  // PERMISSION_DENIED: it comes from another user, and was closed.
  absl::StatusOr<Socket> Accept();

  // Sends a packet of at most 4096 bytes, with the descriptor `fd` unless that is -1. Never waits.
  // UNAVAILABLE: the socket is closed, or the other side does not read.
  absl::Status Send(absl::string_view packet, int fd = -1);
  struct Packet {
    std::string bytes;
    Fd fd;  // Not valid if the packet carried none.
  };
  // Waits for the next packet.
  // UNAVAILABLE: the socket is closed.
  // DEADLINE_EXCEEDED: no packet came within `timeout`.
  absl::StatusOr<Packet> Receive(absl::Duration timeout);
  // Ends the connection, and a Receive() that waits in another thread. It alone is thread-safe.
  void Shutdown();
  // Whether the other side has closed the socket.
  bool IsClosed() const;

  int fd() const { return fd_.get(); }

 private:
  explicit Socket(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace sluice::shm
