#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace sluice::job::v1 {
class JobSpec;
class StepReport;
}  // namespace sluice::job::v1

namespace sluice::cli {

// The progress of a running job as people see it, from the step reports so far. It only computes
// texts and does no I/O.
class Progress {
 public:
  explicit Progress(bool utf8) : utf8_(utf8) {}

  // Takes the job's limits and staleness bound, as in "61/400" and "(bound 4)".
  void SetSpec(const job::v1::JobSpec& spec);
  void Add(const job::v1::StepReport& step);
  // Number of steps done, from the last report.
  int64_t steps() const { return done_; }

  // For example: step 61/400 [####......] 15 %  ends in 1m04s   staleness p50 1 p99 2 (bound 4)
  std::string StepLine() const;
  // For example, in one line:
  //   reward 0.08 -> 0.71 ▁▂▅▆  std 0.45  no spread 12 %  entropy 1.90
  //     tok/s trained 19.8k
  // "no spread" is the share of groups whose answers all got the same reward; nothing is learned
  // from them.
  std::string RewardLine() const;
  // A short form of the two lines above, for logs. For example, in one line:
  //   step 61/400  reward 0.71  std 0.45  no spread 12 %  entropy 1.90  staleness max 2
  //     ends in 1m04s
  std::string LogLine() const;

 private:
  struct Step {
    int64_t k = 0;
    double at = 0;       // Time of the report in seconds since the epoch.
    double score = 0;    // The value named score_.key.
    int64_t tokens = 0;  // Number of trained tokens.
    // Quantiles of the staleness of the trained tokens, in versions.
    int64_t p50 = 0, p99 = 0, max = 0;
    std::optional<double> entropy, kl, reward_std, flat_share;
  };
  static std::string SpreadText(const Step& step);
  std::optional<double> SecondsLeft() const;
  std::string StepCountText() const;  // For example "61/400".

  const bool utf8_;

  // From the spec.
  std::optional<int64_t> max_steps_;
  std::optional<double> wall_seconds_;
  int64_t max_staleness_ = 0;
  bool supervised_ = false;
  // What shows best whether the job learns: the mean reward, or a distance that falls.
  struct Score {
    const char *key, *name;
    bool falls;
  } score_ = {"reward_mean", "reward", false};
  int64_t done_ = 0;
  std::vector<Step> steps_;
};

// For example "1m04s", "22s", "1h02m".
std::string ShortDuration(double seconds);
// For example "19.8k", "312".
std::string ShortCount(double count);
// For example "312 B", "1.2 MiB".
std::string ShortBytes(uint64_t bytes);

// Prints progress and notes on a stream. On a terminal, two lines are redrawn at most 5 times a
// second. Otherwise it prints a line per step, at most one a second. Thread-safe.
class ProgressPrinter {
 public:
  // With `quiet`, only notes are printed.
  ProgressPrinter(std::FILE* out, bool quiet);
  ~ProgressPrinter();

  void SetSpec(const job::v1::JobSpec& spec) ABSL_LOCKS_EXCLUDED(mu_);
  void Add(const job::v1::StepReport& step) ABSL_LOCKS_EXCLUDED(mu_);
  // Prints a line that is not redrawn.
  void Note(const std::string& text) ABSL_LOCKS_EXCLUDED(mu_);
  // Prints the last state if it has not been printed.
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Prints the state, unless less than `pause` has passed since the last time.
  void Show(absl::Duration pause) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Erase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::FILE* const out_;
  const bool quiet_;
  const bool terminal_;
  Mutex mu_;
  Progress progress_ ABSL_GUARDED_BY(mu_);
  absl::Time shown_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int64_t shown_steps_ ABSL_GUARDED_BY(mu_) = 0;
  bool drawn_ ABSL_GUARDED_BY(mu_) = false;  // The two progress lines are on the terminal now.
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice::cli
