#pragma once

#include <sys/socket.h>

namespace gloo::transport::tcp {

class Socket {
 public:
  // Throw if they cannot.
  void bind(const sockaddr_storage& address);
  void bind(const sockaddr* address, socklen_t size);
};

}  // namespace gloo::transport::tcp
