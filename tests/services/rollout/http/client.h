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

// A blocking connection to HOST:PORT that sends exactly the bytes a test gives.
class Client {
 public:
  // `receive_buffer`: size of the kernel's receive buffer in bytes; 0: its default.
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

  // Returns false if the peer has closed the connection.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Reads until `text` has come and returns everything up to its end. If the connection ends first,
  // returns everything that came.
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

  // Everything up to the end of the connection.
  std::string Rest() { return Until("\xFF\xFE there is no such text"); }

 private:
  int fd_;
  std::string seen_;
};

// An HTTP request that posts `body` as JSON. `more` holds further header lines, each with its CRLF.
inline std::string PostText(absl::string_view path, absl::string_view body,
                            absl::string_view more = "") {
  return absl::StrCat(
      "POST ", path,
      " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ",
      body.size(), "\r\n", more, "\r\n", body);
}

}  // namespace sluice::rollout::http
