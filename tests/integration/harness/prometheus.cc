#include "tests/integration/harness/prometheus.h"

#include <cmath>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/rpc/backoff.h"
#include "nlohmann/json.hpp"

namespace sluice::integration {
namespace {

std::string MakeConfig(const Prometheus::Options& options) {
  return absl::StrCat(
      "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
      "rule_files: ['",
      options.rules, "']\nscrape_configs:\n  - job_name: sluice\n    static_configs:\n",
      "      - targets: ['", absl::StrJoin(options.targets, "', '"), "']\n");
}

// Reads the log up to the lines that say where the server listens and that it is ready, which come
// in any order. Returns the address on which it listens.
absl::StatusOr<std::string> AwaitReady(Process& process) {
  std::string address, log;
  bool ready = false;
  while (!ready || address.empty()) {
    const absl::StatusOr<std::string> line = process.ReadLine(kLong);
    if (!line.ok()) {
      return absl::UnavailableError(
          absl::StrCat("prometheus did not start (", line.status().ToString(), "): ", log));
    }
    absl::StrAppend(&log, *line, "\n");
    const nlohmann::json entry = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object()) continue;
    const std::string message = entry.value("msg", "");
    if (message == "Listening on") address = entry.value("address", "");
    if (message == "Server is ready to receive web requests.") ready = true;
  }
  return address;
}

// Asks again and again until `said` is true.
absl::Status Await(const std::string& what, const std::function<absl::StatusOr<bool>()>& said) {
  rpc::Backoff backoff({.longest = absl::Seconds(1)});
  for (const absl::Time end = absl::Now() + kLong; absl::Now() < end;) {
    SLUICE_ASSIGN_OR_RETURN(const bool done, said());
    if (done) return absl::OkStatus();
    absl::SleepFor(backoff.Next());
  }
  return absl::DeadlineExceededError(what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Prometheus>> Prometheus::Start(const Options& options) {
  const std::string config = options.dir + "/prometheus.yaml";
  SLUICE_RETURN_IF_ERROR(WriteFileAtomic(config, MakeConfig(options)));
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<Process> process,
      Process::Start({.binary = "/usr/bin/prometheus",
                      .args = {"--config.file=" + config,
                               "--storage.tsdb.path=" + options.dir + "/prometheus-data",
                               "--web.listen-address=127.0.0.1:0", "--log.format=json"}}));
  SLUICE_ASSIGN_OR_RETURN(std::string address, AwaitReady(*process));
  return std::unique_ptr<Prometheus>(
      new Prometheus(options.dir, std::move(address), std::move(process)));
}

absl::StatusOr<std::string> Prometheus::Get(const std::string& path, const std::string& query) {
  SLUICE_ASSIGN_OR_RETURN(const Finished finished,
                          RunToEnd({.binary = "/usr/bin/curl",
                                    .args = {"-sSG", "--data-urlencode", "query=" + query,
                                             absl::StrCat("http://", address_, path)},
                                    .log = dir_ + "/curl.log"},
                                   kLong));
  if (finished.exit == 0) return finished.out;
  return absl::UnavailableError(absl::StrCat(path, ": ", finished.err));
}

absl::StatusOr<std::vector<double>> Prometheus::Query(const std::string& query) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Get("/api/v1/query", query));
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || answer.value("status", "") != "success")
    return absl::InvalidArgumentError(absl::StrCat(query, ": ", text));
  std::vector<double> values;
  for (const nlohmann::json& series : answer["data"]["result"]) {
    double value = 0;
    if (absl::SimpleAtod(series["value"][1].get<std::string>(), &value) && !std::isnan(value))
      values.push_back(value);
  }
  return values;
}

absl::StatusOr<std::set<std::string>> Prometheus::ListFiring() {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, Get("/api/v1/alerts", ""));
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object() || answer.value("status", "") != "success")
    return absl::InternalError(text);
  std::set<std::string> names;
  for (const nlohmann::json& alert : answer["data"]["alerts"])
    if (alert["state"] == "firing") names.insert(alert["labels"]["alertname"]);
  return names;
}

absl::Status Prometheus::AwaitSeries(const std::string& query, size_t count) {
  return Await(absl::StrCat("no data: ", query), [&]() -> absl::StatusOr<bool> {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<double> values, Query(query));
    return values.size() >= count;
  });
}

absl::Status Prometheus::AwaitFiring(const std::string& alert) {
  return Await(absl::StrCat(alert, " does not fire"), [&]() -> absl::StatusOr<bool> {
    SLUICE_ASSIGN_OR_RETURN(const std::set<std::string> firing, ListFiring());
    return firing.contains(alert);
  });
}

absl::Status Prometheus::AwaitSilent(const std::string& alert) {
  return Await(absl::StrCat(alert, " still fires"), [&]() -> absl::StatusOr<bool> {
    SLUICE_ASSIGN_OR_RETURN(const std::set<std::string> firing, ListFiring());
    return !firing.contains(alert);
  });
}

}  // namespace sluice::integration
