// Measures the time that the HTTP API adds to a first token: over loopback, from the first byte of
// a request for a streamed completion to the first event. The engine behind it answers at once.
//   bench_http [--requests 2000] [--json]
//
// The baseline is a probe over the same connection: it needs the sockets and threads, but no
// parsing, encoding or formatting.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "services/rollout/http/server.h"
#include "tests/bench/report.h"
#include "tests/services/rollout/http/client.h"
#include "tests/services/rollout/http/fake_model.h"

namespace sluice::bench {
namespace {

using rollout::http::Client;

// Answers each request at once, with two tokens.
class InstantModel final : public rollout::http::FakeModel {
 public:
  void UseGuests(rollout::http::Guests* guests) { guests_ = guests; }
  void Add(std::vector<Request> requests) override {
    for (const Request& request : requests) {
      guests_->DeliverEvents(
          rollout::http::Step({rollout::http::Sampled(request.id, 5, "2"),
                               rollout::http::Sampled(request.id, 6, "3", FinishReason::kLength)}));
    }
  }

 private:
  rollout::http::Guests* guests_ = nullptr;
};

// Sends `request` `times` times, and reads each answer up to `end`. Returns for each the
// milliseconds from the first byte sent until `text` arrives.
std::vector<double> MeasureTimes(Client* client, const std::string& request,
                                 const std::string& text, const std::string& end, int times) {
  std::vector<double> taken;
  for (int i = 0; i < times; ++i) {
    const absl::Duration start = Clock::Real()->Monotonic();
    SLUICE_CHECK(client->Send(request));
    SLUICE_CHECK(!client->Until(text).empty());
    taken.push_back(absl::ToDoubleMilliseconds(Clock::Real()->Monotonic() - start));
    if (!end.empty()) SLUICE_CHECK(!client->Until(end).empty());
  }

  return taken;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures the time that the HTTP API adds to a first token, and a probe of the same server.");
  int requests = 2000;
  bool json = false;
  app.add_option("--requests", requests, "number of requests of each kind")
      ->check(CLI::Range(10, 100'000'000))
      ->capture_default_str();
  app.add_flag("--json", json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  const auto model = std::make_shared<InstantModel>();
  rollout::http::Guests guests;
  auto server = rollout::http::Server::Start({}, {.guests = &guests});
  SLUICE_CHECK_MSG(server.ok(), server.status().ToString());
  model->UseGuests(&guests);
  (*server)->api().SetModel(model);
  Client client((*server)->address());
  const std::string ask = rollout::http::PostText(
      "/v1/completions",
      R"({"model": "digits", "prompt": "4821=", "max_tokens": 6, "stream": true})");
  const std::string probe = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
  (void)MeasureTimes(&client, ask, "data: ", "[DONE]\n\n\r\n0\r\n\r\n", 10);  // Warm-up.
  const std::vector<double> probes = MeasureTimes(&client, probe, "ok\n", "", requests);
  const std::vector<double> first =
      MeasureTimes(&client, ask, "data: ", "[DONE]\n\n\r\n0\r\n\r\n", requests);
  const Report report(json);
  report.Add({.name = "http_first_token_median",
              .value = Quantile(first, 0.5),
              .unit = "ms",
              .baseline = Quantile(probes, 0.5),
              .runs = requests});
  report.Add({.name = "http_first_token_p99",
              .value = Quantile(first, 0.99),
              .unit = "ms",
              .baseline = Quantile(probes, 0.99),
              .runs = requests});
  (*server)->Stop();

  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
