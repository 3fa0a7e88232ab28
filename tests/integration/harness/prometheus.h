#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/integration/harness/process.h"

namespace sluice::integration {

// A Prometheus of Debian's package on a free port of loopback, which scrapes every second.
class Prometheus {
 public:
  struct Options {
    // HOST:PORT of what it scrapes.
    std::vector<std::string> targets;
    // A file of rules.
    std::string rules;
    // A folder for its data and log. It exists.
    std::string dir;
  };
  // UNAVAILABLE: it did not start; the message has its log.
  static absl::StatusOr<std::unique_ptr<Prometheus>> Start(const Options& options);

  // The values of the series that a query returns now, without those that are not numbers.
  absl::StatusOr<std::vector<double>> Query(const std::string& query);
  // The names of the alerts that fire.
  absl::StatusOr<std::set<std::string>> ListFiring();

  // Wait, for at most kLong each, until a query returns `count` series or more, and until an alert
  // fires or no longer fires.
  absl::Status AwaitSeries(const std::string& query, size_t count = 1);
  absl::Status AwaitFiring(const std::string& alert);
  absl::Status AwaitSilent(const std::string& alert);

 private:
  Prometheus(std::string dir, std::string address, std::unique_ptr<Process> process)
      : dir_(std::move(dir)), address_(std::move(address)), process_(std::move(process)) {}
  absl::StatusOr<std::string> Get(const std::string& path, const std::string& query);

  const std::string dir_, address_;
  const std::unique_ptr<Process> process_;
};

}  // namespace sluice::integration
