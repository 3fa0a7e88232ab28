#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/shm/segment.h"

namespace sluice::shm {

// A unix socket for packets that may carry a descriptor. Its name is abstract: it lives in the
// network namespace, as the loopback address does, leaves no file behind and ends with its process.
// Both ends are of one user, or there is no connection.
class Socket {
 public:
  // ALREADY_EXISTS: another process listens there.
  static absl::StatusOr<Socket> Listen(absl::string_view name);
  // UNAVAILABLE: nobody listens. PERMISSION_DENIED: another user does.
  static absl::StatusOr<Socket> Connect(absl::string_view name);
  // A connection that waits. UNAVAILABLE: none. PERMISSION_DENIED: it is of another user.
  absl::StatusOr<Socket> Accept();

  // `fd` -1: none. Never waits. UNAVAILABLE: closed, or the other side reads nothing.
  absl::Status Send(absl::string_view packet, int fd = -1);
  struct Packet {
    std::string bytes;
    Fd fd;
  };
  // UNAVAILABLE: closed. DEADLINE_EXCEEDED.
  absl::StatusOr<Packet> Receive(absl::Duration timeout);
  // The other side has closed it.
  bool Closed() const;

  int fd() const { return fd_.get(); }

 private:
  explicit Socket(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace sluice::shm
