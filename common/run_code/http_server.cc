#include "common/run_code/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/loopback.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/run_code/protocol.h"

namespace sluice::run_code {
namespace {

namespace http = boost::beast::http;

constexpr size_t kMostHeaders = 16 << 10;
constexpr size_t kPiece = 64 << 10;
constexpr absl::Duration kRequestTime = absl::Seconds(60);  // From its first byte to its last.
constexpr absl::Duration kIdleTime = absl::Seconds(75);     // Between two requests.
constexpr absl::Duration kWriteTime = absl::Seconds(60);
constexpr int kListen = 128;

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

// A connection, with or without TLS. Its calls end at a deadline of the monotonic clock.
class Socket {
 public:
  explicit Socket(Fd fd) : fd_(std::move(fd)) {}

  bool StartTls(SSL_CTX* context, absl::Duration deadline) {
    ssl_.reset(SSL_new(context));
    if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), fd_.get()) != 1) return false;
    return Repeat(deadline, [&] { return SSL_accept(ssl_.get()); }) == 1;
  }
  // Bytes read; 0 or less: the connection has ended, or the deadline has passed.
  ssize_t Read(char* to, size_t size, absl::Duration deadline) {
    if (ssl_ != nullptr)
      return Repeat(deadline, [&] { return SSL_read(ssl_.get(), to, static_cast<int>(size)); });
    ssize_t got;
    while ((got = recv(fd_.get(), to, size, 0)) < 0 && CanWait(POLLIN, deadline)) {
    }
    return got;
  }
  bool Write(absl::string_view bytes, absl::Duration deadline) {
    while (!bytes.empty()) {
      const ssize_t sent = WriteSome(bytes, deadline);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Ends Read() in another thread. What is being written goes on.
  void EndReading() { shutdown(fd_.get(), SHUT_RD); }
  // Tells the other side that nothing comes any more.
  void End() {
    if (ssl_ != nullptr) SSL_shutdown(ssl_.get());
    shutdown(fd_.get(), SHUT_RDWR);
  }

 private:
  ssize_t WriteSome(absl::string_view bytes, absl::Duration deadline) {
    const size_t size = std::min(bytes.size(), kPiece);
    if (ssl_ != nullptr) {
      return Repeat(deadline,
                    [&] { return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(size)); });
    }
    ssize_t sent;
    while ((sent = send(fd_.get(), bytes.data(), size, MSG_NOSIGNAL)) < 0 &&
           CanWait(POLLOUT, deadline)) {
    }
    return sent;
  }
  // After a call that has failed: whether it may be made again, once the socket is ready.
  bool CanWait(int16_t events, absl::Duration deadline) const {
    if (errno == EINTR) return true;
    return (errno == EAGAIN || errno == EWOULDBLOCK) && Await(events, deadline);
  }
  bool Await(int16_t events, absl::Duration deadline) const {
    const absl::Duration left = deadline - Clock::Real()->Monotonic();
    pollfd ready{fd_.get(), events, 0};
    return left > absl::ZeroDuration() &&
           poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) == 1;
  }
  template <typename Call>
  int Repeat(absl::Duration deadline, const Call& call) {
    while (true) {
      const int result = call();
      if (result > 0) return result;
      const int error = SSL_get_error(ssl_.get(), result);
      const bool again = (error == SSL_ERROR_WANT_READ && Await(POLLIN, deadline)) ||
                         (error == SSL_ERROR_WANT_WRITE && Await(POLLOUT, deadline));
      if (!again) return -1;
    }
  }

  const Fd fd_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, &SSL_free};
};

std::string ToText(const HttpAnswer& answer, bool keep) {
  std::string head =
      absl::StrCat("HTTP/1.1 ", answer.status, " ",
                   std::string(http::obsolete_reason(static_cast<http::status>(answer.status))),
                   "\r\nContent-Type: application/json\r\nContent-Length: ", answer.body.size());
  if (answer.retry_after > absl::ZeroDuration())
    absl::StrAppend(&head, "\r\nRetry-After: ", absl::ToInt64Seconds(answer.retry_after));
  return absl::StrCat(head, "\r\nConnection: ", keep ? "keep-alive" : "close", "\r\n\r\n",
                      answer.body);
}

HttpAnswer Refuse(int status, const char* why) {
  return {.status = status, .body = absl::StrCat("{\"detail\": \"", why, "\"}")};
}

// Whether the header Authorization has the key, in a time that does not depend on its value.
bool HasKey(absl::string_view header, const Secret& key) {
  constexpr absl::string_view kBearer = "Bearer ";
  if (key.empty()) return true;
  if (!absl::StartsWithIgnoreCase(header, kBearer)) return false;
  header.remove_prefix(kBearer.size());
  return header.size() == key.Reveal().size() &&
         CRYPTO_memcmp(header.data(), key.Reveal().data(), header.size()) == 0;
}

}  // namespace

struct HttpServer::Impl {
  explicit Impl(Options given, std::function<HttpAnswer(const HttpRequest&)> function)
      : options(std::move(given)), answer(std::move(function)) {}

  struct Connection {
    explicit Connection(Fd fd) : socket(std::move(fd)) {}
    Socket socket;
    std::thread thread;
    bool ended = false;  // Guarded by mu.
  };

  const Options options;
  const std::function<HttpAnswer(const HttpRequest&)> answer;
  Context tls{nullptr, &SSL_CTX_free};
  std::string address;
  Fd listener;
  const Fd stop{eventfd(0, EFD_CLOEXEC)};
  std::thread accepting;

  Mutex mu;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::list<Connection> connections ABSL_GUARDED_BY(mu);

  absl::Status Listen();
  absl::Status ReadCertificate();
  void Accept();
  void Begin(Fd fd);
  void Serve(Connection* connection);
  // One request and its answer. Returns whether another one may follow.
  bool ServeOne(Socket* socket, std::string* buffer);
  void Stop();
};

absl::Status HttpServer::Impl::Listen() {
  const size_t colon = options.address.rfind(':');
  std::string host = options.address.substr(0, colon == std::string::npos ? 0 : colon);
  if (absl::StartsWith(host, "[")) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  sockaddr_storage to = {};
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&to);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&to);
  uint32_t port = 0;
  const bool is_v4 = inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1;
  const bool is_v6 = !is_v4 && inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1;
  if (!(is_v4 || is_v6) || !absl::SimpleAtoi(options.address.substr(colon + 1), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(options.address,
                                                   " is not an address; wanted: IP:PORT, such as ",
                                                   "127.0.0.1:8000 or [::1]:8000"));
  }
  if (!IsLoopback(host) && (options.key.empty() || options.cert.empty())) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.address, " is not on loopback, so programs need a key and TLS"));
  }
  to.ss_family = is_v4 ? AF_INET : AF_INET6;
  (is_v4 ? v4->sin_port : v6->sin6_port) = htons(static_cast<uint16_t>(port));

  socklen_t size = is_v4 ? sizeof *v4 : sizeof *v6;
  listener = Fd(socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&to), size) != 0 ||
      listen(listener.get(), kListen) != 0) {
    if (errno != EADDRINUSE)
      return absl::InvalidArgumentError(absl::StrCat(options.address, ": ", std::strerror(errno)));
    return ErrorWith(absl::StatusCode::kAlreadyExists,
                     {.reason = "PORT_IN_USE",
                      .hint = "stop what listens there, or give another port (0: any free one)"},
                     absl::StrCat("cannot listen on ", options.address, ": it is in use"));
  }
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&to), &size);
  address = absl::StrCat(options.address.substr(0, colon), ":",
                         ntohs(is_v4 ? v4->sin_port : v6->sin6_port));
  return absl::OkStatus();
}

absl::Status HttpServer::Impl::ReadCertificate() {
  if (options.cert.empty()) return absl::OkStatus();
  tls.reset(SSL_CTX_new(TLS_server_method()));
  SLUICE_CHECK(tls != nullptr);
  SSL_CTX_set_min_proto_version(tls.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(tls.get(), SSL_MODE_ENABLE_PARTIAL_WRITE);
  if (SSL_CTX_use_certificate_chain_file(tls.get(), options.cert.c_str()) != 1)
    return absl::InvalidArgumentError(
        absl::StrCat("certificate ", options.cert, " cannot be used"));
  if (SSL_CTX_use_PrivateKey_file(tls.get(), options.cert_key.c_str(), SSL_FILETYPE_PEM) != 1)
    return absl::InvalidArgumentError(
        absl::StrCat("key ", options.cert_key, " cannot be used with ", options.cert));
  return absl::OkStatus();
}

void HttpServer::Impl::Accept() {
  pthread_setname_np(pthread_self(), "http_accept");
  while (true) {
    pollfd ready[] = {{listener.get(), POLLIN, 0}, {stop.get(), POLLIN, 0}};
    if (poll(ready, 2, -1) < 0) continue;
    if (ready[1].revents != 0) return;
    Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) Begin(std::move(fd));
  }
}

void HttpServer::Impl::Begin(Fd fd) {
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  std::list<Connection> ended;  // Joined without the lock.
  {
    MutexLock lock(&mu);
    for (auto it = connections.begin(); it != connections.end();) {
      const auto next = std::next(it);
      if (it->ended) ended.splice(ended.end(), connections, it);
      it = next;
    }
    if (!stopping && connections.size() < options.most_connections) {
      Connection& connection = connections.emplace_back(std::move(fd));
      connection.thread = std::thread([this, &connection] { Serve(&connection); });
    }
  }
  for (Connection& connection : ended) connection.thread.join();
}

void HttpServer::Impl::Serve(Connection* connection) {
  pthread_setname_np(pthread_self(), "http");
  std::string buffer;
  const absl::Duration deadline = Clock::Real()->Monotonic() + kRequestTime;
  if (tls == nullptr || connection->socket.StartTls(tls.get(), deadline)) {
    while (ServeOne(&connection->socket, &buffer)) {
    }
  }
  connection->socket.End();
  MutexLock lock(&mu);
  connection->ended = true;
}

bool HttpServer::Impl::ServeOne(Socket* socket, std::string* buffer) {
  http::request_parser<http::string_body> parser;
  parser.header_limit(kMostHeaders);
  parser.body_limit(kMostRequest);
  const auto send = [&](const HttpAnswer& given, bool keep) {
    return socket->Write(ToText(given, keep), Clock::Real()->Monotonic() + kWriteTime) && keep;
  };

  absl::Duration deadline = Clock::Real()->Monotonic() + kIdleTime;
  bool begun = false, admitted = false;
  while (!parser.is_done()) {
    boost::system::error_code error;
    if (!buffer->empty()) {
      const size_t used = parser.put(boost::asio::buffer(*buffer), error);
      buffer->erase(0, used);
      if (error == http::error::body_limit || error == http::error::header_limit)
        return send(Refuse(413, "the request is too large"), false);
      if (error && error != http::error::need_more)
        return send(Refuse(400, "this is no HTTP request"), false);
    }
    if (parser.is_header_done() && !std::exchange(admitted, true)) {
      // Nothing is kept for who has no key.
      const auto header = parser.get()[http::field::authorization];
      if (!HasKey({header.data(), header.size()}, options.key))
        return send(Refuse(401, "the header Authorization needs the key, as Bearer KEY"), false);
      parser.eager(true);
      if (!buffer->empty()) continue;
    }
    if (parser.is_done()) break;
    char piece[kPiece];
    const ssize_t got = socket->Read(piece, sizeof piece, deadline);
    if (got <= 0) return false;
    if (!std::exchange(begun, true)) deadline = Clock::Real()->Monotonic() + kRequestTime;
    buffer->append(piece, static_cast<size_t>(got));
  }

  http::request<http::string_body> request = parser.release();
  const bool keep = request.keep_alive();
  const HttpAnswer given = answer({.method = std::string(request.method_string()),
                                   .path = std::string(request.target()),
                                   .body = std::move(request.body())});
  return send(given, keep);
}

void HttpServer::Impl::Stop() {
  {
    MutexLock lock(&mu);
    if (std::exchange(stopping, true)) return;
    for (Connection& connection : connections) connection.socket.EndReading();
  }
  (void)eventfd_write(stop.get(), 1);
  if (accepting.joinable()) accepting.join();
  listener = Fd();
  std::list<Connection> ended;
  {
    MutexLock lock(&mu);
    // Threads keep pointers to their entries, which moving the list leaves valid.
    ended.splice(ended.end(), connections);
  }
  for (Connection& connection : ended) connection.thread.join();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(); }
const std::string& HttpServer::address() const { return impl_->address; }
void HttpServer::Stop() { impl_->Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    Options options, std::function<HttpAnswer(const HttpRequest&)> answer) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(answer));
  SLUICE_RETURN_IF_ERROR(impl->ReadCertificate());
  SLUICE_RETURN_IF_ERROR(impl->Listen());
  impl->accepting = std::thread([raw = impl.get()] { raw->Accept(); });
  return absl::WrapUnique(new HttpServer(std::move(impl)));
}

}  // namespace sluice::run_code
