#include "tools/sluice/dial.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

// Waits until the socket is ready for `events`. False: not by `deadline`.
bool AwaitSocket(const Fd& fd, short events, absl::Time deadline) {
  for (;;) {
    const absl::Duration left = std::max(absl::ZeroDuration(), deadline - absl::Now());
    pollfd ready{fd.get(), events, 0};
    const int n = poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
    if (n < 0 && errno == EINTR) continue;
    return n > 0;
  }
}

absl::Status TimeoutError(absl::string_view address) {
  return absl::DeadlineExceededError(absl::StrCat(address, " did not answer in time"));
}

}  // namespace

absl::StatusOr<AddressList> ResolveAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos || colon == 0 || colon + 1 == address.size())
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  std::string host(address.substr(0, colon));
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(host.c_str(), std::string(address.substr(colon + 1)).c_str(), &hints, &list);
  if (error != 0)
    return absl::NotFoundError(absl::StrCat("the name ", host, ": ", gai_strerror(error)));
  return AddressList(list, freeaddrinfo);
}

absl::StatusOr<Fd> DialTcp(absl::string_view address, absl::Duration timeout) {
  SLUICE_ASSIGN_OR_RETURN(const AddressList where, ResolveAddress(address));
  const absl::Time deadline = absl::Now() + timeout;
  int error = 0;
  for (const addrinfo* one = where.get(); one != nullptr; one = one->ai_next) {
    Fd fd(socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return fd;
    error = errno;
    if (error != EINPROGRESS) continue;
    if (!AwaitSocket(fd, POLLOUT, deadline)) return TimeoutError(address);
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) return fd;
  }
  return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(error)));
}

absl::StatusOr<std::string> HttpGet(absl::string_view address, absl::string_view path,
                                    absl::Duration timeout, uint64_t limit) {
  const absl::Time deadline = absl::Now() + timeout;
  SLUICE_ASSIGN_OR_RETURN(const Fd fd, DialTcp(address, timeout));
  // HTTP/1.0 has no chunks: the body ends with the connection.
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(errno)));

  std::string answer;
  char buffer[16384];
  for (;;) {
    if (!AwaitSocket(fd, POLLIN, deadline)) return TimeoutError(address);
    const ssize_t n = recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat(address, ": ", std::strerror(errno)));
    if (n == 0) break;
    answer.append(buffer, static_cast<size_t>(n));
    if (answer.size() > limit)
      return absl::ResourceExhaustedError(
          absl::StrCat("http://", address, path, " has more than ", limit, " bytes"));
  }

  const size_t line = answer.find("\r\n"), body = answer.find("\r\n\r\n");
  if (line == answer.npos || body == answer.npos || !absl::StartsWith(answer, "HTTP/"))
    return absl::FailedPreconditionError(absl::StrCat(address, " speaks no HTTP"));
  const std::string status = answer.substr(0, line);
  if (!absl::StrContains(status, " 200"))
    return absl::FailedPreconditionError(
        absl::StrCat("http://", address, path, " answered ", status));
  return answer.substr(body + 4);
}

}  // namespace sluice::cli
