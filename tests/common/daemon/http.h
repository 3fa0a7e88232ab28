#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace sluice::daemon {

// Returns the whole answer to a request, or an empty text if the connection fails. `address` is
// an IPv4 address with a port.
inline std::string HttpAsk(const std::string& address, const std::string& method,
                           const std::string& path, const std::string& host = "localhost") {
  const size_t colon = address.rfind(':');
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
  (void)inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr);
  std::string answer;

  if (connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)) == 0) {
    const std::string request =
        method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;)
        answer.append(buffer, static_cast<size_t>(n));
    }
  }

  close(fd);
  return answer;
}

inline std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpAsk(address, "GET", path);
}

}  // namespace sluice::daemon
