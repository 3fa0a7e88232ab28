#include "common/daemon/ops_server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"

namespace sluice::daemon {
namespace {

// Sends the whole response, or its head alone, and returns its status.
int SendResponse(mg_connection* connection, const HttpResponse& response, bool with_body = true) {
  std::string head = absl::StrCat(
      "HTTP/1.1 ", response.status, " ", mg_get_response_code_text(connection, response.status),
      "\r\nContent-Type: ", response.type, "\r\nContent-Length: ", response.body.size());
  for (const auto& [name, value] : response.headers)
    absl::StrAppend(&head, "\r\n", name, ": ", value);
  absl::StrAppend(&head, "\r\nConnection: close\r\n\r\n");
  mg_write(connection, head.data(), head.size());
  if (with_body) mg_write(connection, response.body.data(), response.body.size());
  return response.status;
}

// Answers a request to one of the daemon's own routes.
int AnswerRoute(mg_connection* connection, void* data) {
  const HttpRoute& route = *static_cast<const HttpRoute*>(data);
  const mg_request_info& info = *mg_get_request_info(connection);
  // The library also matches /pages for the route /page. With 0 it answers by itself.
  const char next = info.local_uri[route.path.size()];
  if (next != '\0' && next != '/') return 0;

  const absl::string_view method = info.request_method;
  if (method != "GET" && method != "HEAD") {
    return SendResponse(connection, {.status = 405,
                                     .body = "this page can only be read; use GET\n",
                                     .headers = {{"Allow", "GET, HEAD"}}});
  }

  const char* const host = mg_get_header(connection, "Host");
  const HttpResponse response =
      route.answer({.path = info.local_uri,
                    .query = info.query_string == nullptr ? "" : info.query_string,
                    .host = host == nullptr ? "" : host});
  return SendResponse(connection, response, /*with_body=*/method == "GET");
}

int AnswerProbe(mg_connection* connection, const absl::StatusOr<std::string>& answer) {
  if (answer.ok()) return SendResponse(connection, {.body = absl::StrCat(*answer, "\n")});
  return SendResponse(connection,
                      {.status = 503, .body = absl::StrCat(answer.status().message(), "\n")});
}

// Opens a connection to a local port and closes it at once.
void OpenAndCloseConnection(int port, bool ipv6) {
  const int fd = socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  if (ipv6) {
    sockaddr_in6 peer{.sin6_family = AF_INET6,
                      .sin6_port = htons(static_cast<uint16_t>(port)),
                      .sin6_addr = in6addr_loopback};
    (void)connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer));
  } else {
    sockaddr_in peer{.sin_family = AF_INET,
                     .sin_port = htons(static_cast<uint16_t>(port)),
                     .sin_addr = {htonl(INADDR_LOOPBACK)}};
    (void)connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer));
  }
  close(fd);
}

}  // namespace

struct OpsServer::Impl {
  metrics::Registry* metrics = nullptr;
  Probes probes;
  std::vector<HttpRoute> routes;
  mg_context* context = nullptr;
  std::string address;
  int port = 0;

  ~Impl() {
    if (context != nullptr) Stop();
  }

  // Stops the library's threads. Without a new connection they look only every two seconds whether
  // they should end, so connections are made until they have ended.
  void Stop() {
    Mutex mu;
    CondVar changed;
    bool ended = false;
    // mg_stop() blocks until the library's threads have ended.
    std::thread stopper([&] {
      mg_stop(context);
      MutexLock lock(&mu);
      ended = true;
      changed.NotifyAll();
    });
    {
      MutexLock lock(&mu);
      while (!ended) {
        OpenAndCloseConnection(port, address.front() == '[');
        changed.WaitFor(&mu, absl::Milliseconds(5));
      }
    }
    stopper.join();
  }
};

OpsServer::OpsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OpsServer::~OpsServer() = default;
const std::string& OpsServer::address() const { return impl_->address; }

absl::StatusOr<std::unique_ptr<OpsServer>> OpsServer::Start(absl::string_view address,
                                                            metrics::Registry* metrics,
                                                            Probes probes,
                                                            std::vector<HttpRoute> routes) {
  SLUICE_RETURN_IF_ERROR(rpc::CheckAddress(address, rpc::ProcessCredentials() != nullptr));

  static const bool initialized = mg_init_library(MG_FEATURES_DEFAULT) != 0;
  // The call returns the features that it has set up, so 0 is right where none were asked for.
  SLUICE_CHECK(initialized || MG_FEATURES_DEFAULT == 0);
  auto impl = std::make_unique<Impl>();
  impl->metrics = metrics;
  impl->probes = std::move(probes);
  impl->routes = std::move(routes);

  const std::string host(address.substr(0, address.rfind(':')));
  // The library accepts only numeric hosts.
  const std::string ports = absl::StartsWith(address, "localhost:")
                                ? absl::StrCat("127.0.0.1", address.substr(host.size()))
                                : std::string(address);

  // A browser opens several connections at once, and each holds a thread while it is open. A
  // probe of /livez must still find one.
  const char* const threads = impl->routes.empty() ? "2" : "16";
  const char* options[] = {"listening_ports",    ports.c_str(), "num_threads", threads,
                           "request_timeout_ms", "5000",        nullptr};
  mg_callbacks callbacks{};
  // The library's messages are dropped: an error is returned as a status.
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  impl->context = mg_start(&callbacks, nullptr, options);
  // The library does not say why it could not start; a used port is the usual reason.
  if (impl->context == nullptr) {
    return ErrorWith(absl::StatusCode::kAlreadyExists,
                     {.reason = "PORT_IN_USE",
                      .catalogue = "SLUICE-RPC-0002",
                      .hint = "stop what listens there, or give another port with --ops (port 0 "
                              "means any free port)"},
                     absl::StrCat("cannot serve metrics on ", address, ": the port is in use"));
  }
  mg_server_port bound{};
  SLUICE_CHECK(mg_get_server_ports(impl->context, 1, &bound) == 1);
  impl->port = bound.port;
  impl->address = absl::StrCat(host, ":", bound.port);

  mg_set_request_handler(
      impl->context, "/metrics$",
      [](mg_connection* connection, void* self) {
        return SendResponse(connection, {.type = "text/plain; version=0.0.4; charset=utf-8",
                                         .body = static_cast<Impl*>(self)->metrics->Text()});
      },
      impl.get());
  mg_set_request_handler(
      impl->context, "/livez$",
      [](mg_connection* connection, void* self) {
        const absl::Status live = static_cast<Impl*>(self)->probes.live();
        return AnswerProbe(connection, live.ok() ? absl::StatusOr<std::string>("ok") : live);
      },
      impl.get());
  mg_set_request_handler(
      impl->context, "/readyz$",
      [](mg_connection* connection, void* self) {
        return AnswerProbe(connection, static_cast<Impl*>(self)->probes.ready());
      },
      impl.get());
  for (HttpRoute& route : impl->routes)
    mg_set_request_handler(impl->context, route.path.c_str(), AnswerRoute, &route);
  return std::unique_ptr<OpsServer>(new OpsServer(std::move(impl)));
}

}  // namespace sluice::daemon
