#include "common/shm/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::shm {
namespace {
constexpr size_t kMaxPacket = 4096;

absl::StatusOr<std::pair<sockaddr_un, socklen_t>> AbstractAddress(absl::string_view name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the socket name ", name, " has ", name.size(),
                                                   " bytes; the limit is ",
                                                   sizeof(address.sun_path) - 1));
  }
  // A leading zero byte makes the name abstract.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return std::make_pair(address,
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

// PERMISSION_DENIED unless the process at the other end has our user.
absl::Status CheckPeer(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  // The kernel, not the peer, says which user it has.
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid())
    return absl::OkStatus();
  return absl::PermissionDeniedError("the other end of the socket belongs to another user");
}

absl::Status UnavailableFromErrno(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Returns the descriptor that the received `message` brought, if it brought exactly one. The buffer
// for control data has room for more, and the kernel installs all that fit: they are closed.
Fd TakeDescriptor(msghdr* message) {
  Fd taken;
  for (cmsghdr* head = CMSG_FIRSTHDR(message); head != nullptr; head = CMSG_NXTHDR(message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;

    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      Fd owned(fd);
      if (count == 1) taken = std::move(owned);
    }
  }
  return taken;
}
}  // namespace

absl::StatusOr<Socket> Socket::Listen(absl::string_view name) {
  SLUICE_ASSIGN_OR_RETURN(const auto address, AbstractAddress(name));
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return UnavailableFromErrno("socket");
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.first), address.second) != 0 ||
      listen(fd.get(), 64) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("@", name, ": ", std::strerror(errno)));
  }
  return Socket(std::move(fd));
}

absl::StatusOr<Socket> Socket::Connect(absl::string_view name) {
  SLUICE_ASSIGN_OR_RETURN(const auto address, AbstractAddress(name));
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.first), address.second) != 0)
    return UnavailableFromErrno("connect");
  SLUICE_RETURN_IF_ERROR(CheckPeer(fd.get()));
  return Socket(std::move(fd));
}

absl::StatusOr<Socket> Socket::Accept() {
  Fd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) return UnavailableFromErrno("accept");
  SLUICE_RETURN_IF_ERROR(CheckPeer(fd.get()));
  return Socket(std::move(fd));
}

absl::Status Socket::Send(absl::string_view packet, int fd) {
  iovec bytes = {const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;

  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof(int));
  }

  if (sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
      static_cast<ssize_t>(packet.size()))
    return absl::OkStatus();
  return UnavailableFromErrno("send");
}

absl::StatusOr<Socket::Packet> Socket::Receive(absl::Duration timeout) {
  pollfd ready = {fd_.get(), POLLIN, 0};
  // After a signal the wait starts again, so it may last longer than `timeout`. No caller minds
  // that.
  int polled;
  do {
    polled = poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  } while (polled < 0 && errno == EINTR);
  if (polled == 0) return absl::DeadlineExceededError("no packet came");

  Packet packet;
  packet.bytes.resize(kMaxPacket);
  iovec bytes = {packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got >= 0) packet.fd = TakeDescriptor(&message);
  if (got <= 0)
    return got == 0 ? absl::UnavailableError("the socket is closed")
                    : UnavailableFromErrno("receive");

  packet.bytes.resize(static_cast<size_t>(got));
  return packet;
}

void Socket::Shutdown() { shutdown(fd_.get(), SHUT_RDWR); }

bool Socket::IsClosed() const {
  char byte = 0;
  const ssize_t got = recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace sluice::shm
