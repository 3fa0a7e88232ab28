#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace sluice::rollout::http {

// A blocking connection to HOST:PORT that sends what a test says, byte for byte.
class Client {
 public:
  // `receive_buffer`: of the kernel, bytes; 0: as it is.
  explicit Client(const std::string& address, int receive_buffer = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    uint32_t port = 0;
    SLUICE_CHECK(fd_ >= 0 && absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(static_cast<uint16_t>(port));
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    SLUICE_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&peer), sizeof peer) == 0);
  }
  ~Client() { Close(); }
  Client(Client&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), seen_(std::move(other.seen_)) {}
  Client& operator=(Client&&) = delete;

  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // False: the peer has closed.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Reads until `text` has come and gives all up to its end; up to the connection's end where it
  // does not come.
  std::string Until(absl::string_view text) {
    size_t at;
    while ((at = seen_.find(std::string(text))) == std::string::npos) {
      char buffer[16 << 10];
      const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) return std::exchange(seen_, {});
      seen_.append(buffer, static_cast<size_t>(got));
    }
    std::string taken = seen_.substr(0, at + text.size());
    seen_.erase(0, at + text.size());
    return taken;
  }
  std::string Rest() { return Until("\xFF\xFE there is no such text"); }

 private:
  int fd_;
  std::string seen_;
};

inline std::string PostText(absl::string_view path, absl::string_view body,
                            absl::string_view more = "") {
  return absl::StrCat("POST ", path,
                      " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ",
                      body.size(), "\r\n", more, "\r\n", body);
}

}  // namespace sluice::rollout::http
