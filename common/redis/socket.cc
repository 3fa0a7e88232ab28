#include "common/redis/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice::redis {
namespace {

absl::Status SystemError(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

// Waits until `fd` is ready for `events`, or has an error that the next call will report.
absl::Status AwaitReady(int fd, short events, absl::Duration deadline) {
  pollfd wanted{.fd = fd, .events = events};
  while (true) {
    const absl::Duration left = deadline - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) return absl::UnavailableError("no answer in time");
    // Rounded up, so that the last wait does not become a busy loop.
    const absl::Duration wait = std::min(left, absl::Hours(1)) + absl::Milliseconds(1);
    const int ready = poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return SystemError("poll", errno);
  }
}

// The newest error of OpenSSL's queue, which it empties.
std::string TlsErrorText() {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_peek_last_error(); code != 0)
    ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

bool IsIpAddress(const std::string& host) {
  in6_addr bytes;
  return inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &bytes) == 1;
}

// Says which certificate is needed. A name goes to the server too, which may have several.
bool ExpectHost(SSL* tls, const std::string& host) {
  if (IsIpAddress(host))
    return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), host.c_str()) == 1;
  return SSL_set1_host(tls, host.c_str()) == 1 && SSL_set_tlsext_host_name(tls, host.c_str()) == 1;
}

absl::Status BadCertificateError(const Endpoint& endpoint, long verdict) {
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "BAD_CERTIFICATE",
       .catalogue = "SLUICE-AUTH-0021",
       .hint = "give the CA file of the authority that signed the certificate of this Redis, and "
               "name the host as the certificate does"},
      absl::StrCat("Redis at ", endpoint.str(), " has a certificate that is not accepted (",
                   X509_verify_cert_error_string(verdict), "); the CA file is ",
                   endpoint.ca_file.empty() ? "that of the system" : endpoint.ca_file));
}

}  // namespace

Socket::~Socket() {
  SSL_free(tls_);
  SSL_CTX_free(tls_context_);
  MutexLock lock(&mu_);
  if (fd_ >= 0) close(fd_);
}

absl::Status Socket::Connect(const Endpoint& endpoint, absl::Duration deadline) {
  SLUICE_RETURN_IF_ERROR(OpenTcp(endpoint, deadline));
  return endpoint.tls ? StartTls(endpoint, deadline) : absl::OkStatus();
}

absl::Status Socket::OpenTcp(const Endpoint& endpoint, absl::Duration deadline) {
  const addrinfo hints{.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int code =
      getaddrinfo(endpoint.host.c_str(), absl::StrCat(endpoint.port).c_str(), &hints, &found);
  if (code != 0)
    return absl::UnavailableError(absl::StrCat("host ", endpoint.host, ": ", gai_strerror(code)));
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };

  absl::Status status = absl::UnavailableError("no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    {
      MutexLock lock(&mu_);
      if (shut_down_) return absl::UnavailableError("shut down");
      if (fd_ >= 0) close(fd_);
      fd_ = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (fd_ < 0) return SystemError("socket", errno);
    }
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));

    if (connect(fd_, address->ai_addr, address->ai_addrlen) == 0) return absl::OkStatus();
    status = SystemError("connect", errno);
    if (errno != EINPROGRESS) continue;
    status = AwaitReady(fd_, POLLOUT, deadline);
    if (!status.ok()) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) return absl::OkStatus();
    status = SystemError("connect", error);
  }
  return status;
}

absl::Status Socket::StartTls(const Endpoint& endpoint, absl::Duration deadline) {
  ERR_clear_error();
  tls_context_ = SSL_CTX_new(TLS_client_method());
  if (tls_context_ == nullptr) return absl::InternalError(TlsErrorText());
  SSL_CTX_set_min_proto_version(tls_context_, TLS1_2_VERSION);
  SSL_CTX_set_verify(tls_context_, SSL_VERIFY_PEER, nullptr);
  const int loaded =
      endpoint.ca_file.empty()
          ? SSL_CTX_set_default_verify_paths(tls_context_)
          : SSL_CTX_load_verify_locations(tls_context_, endpoint.ca_file.c_str(), nullptr);
  if (loaded != 1) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "BAD_PEM", .hint = "give a PEM file with certificates"},
                     absl::StrCat("the CA file ", endpoint.ca_file, ": ", TlsErrorText()));
  }

  tls_ = SSL_new(tls_context_);
  if (tls_ == nullptr || !ExpectHost(tls_, endpoint.host) || SSL_set_fd(tls_, fd_) != 1)
    return absl::InternalError(TlsErrorText());
  while (true) {
    const int result = SSL_connect(tls_);
    if (result == 1) return absl::OkStatus();
    if (const long verdict = SSL_get_verify_result(tls_); verdict != X509_V_OK) {
      ERR_clear_error();
      return BadCertificateError(endpoint, verdict);
    }
    SLUICE_RETURN_IF_ERROR(AwaitTls(result, deadline));
  }
}

absl::Status Socket::AwaitTls(int ssl_result, absl::Duration deadline) {
  const int system_error = errno;
  switch (SSL_get_error(tls_, ssl_result)) {
    case SSL_ERROR_WANT_READ: return AwaitReady(fd_, POLLIN, deadline);
    case SSL_ERROR_WANT_WRITE: return AwaitReady(fd_, POLLOUT, deadline);
    case SSL_ERROR_ZERO_RETURN: return absl::UnavailableError("the server closed the connection");
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return system_error == 0 ? absl::UnavailableError("the server closed the connection")
                               : SystemError("TLS", system_error);
    default: return absl::UnavailableError(absl::StrCat("TLS: ", TlsErrorText()));
  }
}

absl::Status Socket::Write(absl::string_view bytes, absl::Duration deadline) {
  while (!bytes.empty()) {
    if (tls_ != nullptr) {
      size_t written = 0;
      errno = 0;
      const int result = SSL_write_ex(tls_, bytes.data(), bytes.size(), &written);
      if (result != 1) SLUICE_RETURN_IF_ERROR(AwaitTls(result, deadline));
      bytes.remove_prefix(written);
      continue;
    }
    const ssize_t written = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (written >= 0) {
      bytes.remove_prefix(written);
    } else if (errno == EAGAIN) {
      SLUICE_RETURN_IF_ERROR(AwaitReady(fd_, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return SystemError("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Socket::Read(char* bytes, size_t size, absl::Duration deadline) {
  while (true) {
    if (tls_ != nullptr) {
      size_t got = 0;
      errno = 0;
      const int result = SSL_read_ex(tls_, bytes, size, &got);
      if (result == 1) return got;
      SLUICE_RETURN_IF_ERROR(AwaitTls(result, deadline));
      continue;
    }
    const ssize_t got = recv(fd_, bytes, size, 0);
    if (got > 0) return got;
    if (got == 0) return absl::UnavailableError("the server closed the connection");
    if (errno == EAGAIN) {
      SLUICE_RETURN_IF_ERROR(AwaitReady(fd_, POLLIN, deadline));
    } else if (errno != EINTR) {
      return SystemError("recv", errno);
    }
  }
}

void Socket::Shutdown() {
  MutexLock lock(&mu_);
  shut_down_ = true;
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
}

}  // namespace sluice::redis
