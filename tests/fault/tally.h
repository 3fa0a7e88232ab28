#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/fault/judge.h"

namespace sluice::fault {

// What a run of the kill matrix has done and found so far, and the report of it.
class Tally {
 public:
  // `most`: how many kills are planned. `as_json`: progress and report are lines of JSON on stdout;
  // otherwise they are text, and the progress goes to stderr.
  Tally(int most, bool as_json) : most_(most), as_json_(as_json) {}

  // A process of `role` was killed at the failpoint `point`; empty: at a random moment.
  void AddKill(const std::string& regime, const std::string& role, const std::string& point);
  // `role` worked again `took` after its death.
  void AddRecovery(const std::string& role, absl::Duration took) {
    recovery_ms_[role].push_back(absl::ToDoubleMilliseconds(took));
  }

  // The verdict on the job of a regime.
  void SetVerdict(const std::string& regime, const Verdict& verdict) {
    verdicts_[regime] = verdict;
  }

  int kills() const { return kills_; }
  bool SawKill(const std::string& role, const std::string& point) const;

  // Prints the report and returns the exit code: 0 if no promise was broken and, with
  // `every_point`, a process was killed at each of `points`. These are the role and failpoint of
  // every place where the run kills.
  int Report(const std::vector<std::pair<std::string, std::string>>& points,
             bool every_point) const;

 private:
  const int most_;
  const bool as_json_;
  const absl::Time start_ = absl::Now();
  absl::Time reported_at_ = start_;
  int kills_ = 0;
  std::map<std::string, std::map<std::string, int>> points_;   // By role and point.
  std::map<std::string, std::map<std::string, int>> regimes_;  // By regime and role.
  std::map<std::string, std::vector<double>> recovery_ms_;     // Milliseconds, by role.
  std::map<std::string, Verdict> verdicts_;
};

}  // namespace sluice::fault
