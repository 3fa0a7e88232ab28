#include "common/daemon/ops_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "tests/common/daemon/http.h"

namespace sluice::daemon {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Probes of a daemon that is well.
OpsServer::Probes Well() {
  return {.live = [] { return absl::OkStatus(); }, .ready = [] { return "ok"; }};
}

TEST(OpsServerTest, ServesMetricsAndLiveness) {
  metrics::Registry metrics;
  metrics.AddCounter("sluice_test_total", "Test.").Add(3);
  const auto server = OpsServer::Start("127.0.0.1:0", &metrics, Well());
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string& address = (*server)->address();

  EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("sluice_test_total 3"));
  EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(HttpGet(address, "/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet(address, "/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet(address, "/etc/passwd"), StartsWith("HTTP/1.1 404"));
}

TEST(OpsServerTest, ProbesNameTheirReasons) {
  metrics::Registry metrics;
  std::atomic<bool> well{false};
  const auto say_live = [&] {
    return well ? absl::OkStatus() : absl::UnavailableError("the loop has stopped");
  };
  const auto say_ready = [&]() -> absl::StatusOr<std::string> {
    if (!well) return absl::UnavailableError("no weights yet");
    return "serving";
  };
  const auto server =
      OpsServer::Start("127.0.0.1:0", &metrics, {.live = say_live, .ready = say_ready});
  ASSERT_TRUE(server.ok());
  const std::string live = HttpGet((*server)->address(), "/livez"),
                    ready = HttpGet((*server)->address(), "/readyz");

  EXPECT_THAT(live, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(live, HasSubstr("the loop has stopped"));
  EXPECT_THAT(ready, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(ready, HasSubstr("no weights yet"));

  well = true;
  EXPECT_THAT(HttpGet((*server)->address(), "/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(HttpGet((*server)->address(), "/readyz"), StartsWith("HTTP/1.1 200"));
}

TEST(OpsServerTest, ARouteOfTheDaemonAnswersForItsPathAndThoseBelowIt) {
  metrics::Registry metrics;
  const HttpRoute route{"/page", [](const HttpRequest& request) {
                          return HttpResponse{
                              .status = 404,
                              .type = "text/html",
                              .body = request.path + " " + request.query + " " + request.host,
                              .headers = {{"X-Test", "yes"}}};
                        }};
  const auto server = OpsServer::Start("127.0.0.1:0", &metrics, Well(), {route});
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string& address = (*server)->address();

  const std::string answer = HttpAsk(address, "GET", "/page/a%20b?c=%20", "Somewhere:7");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n"));
  EXPECT_THAT(answer, HasSubstr("X-Test: yes\r\n"));
  EXPECT_THAT(answer, EndsWith("/page/a b c=%20 Somewhere:7"));
  EXPECT_THAT(HttpAsk(address, "HEAD", "/page"), EndsWith("\r\n\r\n"));
  EXPECT_THAT(HttpGet(address, "/pages"), Not(HasSubstr("X-Test")));
  EXPECT_THAT(HttpGet(address, "/livez"), StartsWith("HTTP/1.1 200"));
}

TEST(OpsServerTest, ARouteOfTheDaemonCanOnlyBeRead) {
  metrics::Registry metrics;
  std::atomic<int> calls{0};
  const HttpRoute route{"/page", [&](const HttpRequest&) {
                          ++calls;
                          return HttpResponse{};
                        }};
  const auto server = OpsServer::Start("127.0.0.1:0", &metrics, Well(), {route});
  ASSERT_TRUE(server.ok()) << server.status();

  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH"}) {
    const std::string answer = HttpAsk((*server)->address(), method, "/page");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD")) << method;
  }
  EXPECT_EQ(calls, 0);
}

TEST(OpsServerTest, APortInUseIsNamed) {
  metrics::Registry metrics;
  const auto first = OpsServer::Start("127.0.0.1:0", &metrics, Well());
  ASSERT_TRUE(first.ok());
  const auto second = OpsServer::Start((*first)->address(), &metrics, Well());

  EXPECT_EQ(ReasonOf(second.status()), "PORT_IN_USE");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr((*first)->address()));
}

}  // namespace
}  // namespace sluice::daemon
