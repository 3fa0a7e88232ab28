#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/scoring/scorer.h"
#include "services/reward/comparison.h"
#include "services/reward/metrics.h"

namespace sluice::reward {

// Has the candidates of a job (`shadow` of an entry of its rewards) score answers that were scored
// already, and compares. Candidates change nothing: they have a thread of their own, and answers
// that come while it is busy with kMostWaiting others, or kMostBytes of them, are skipped and
// counted.
//
// The counts are those of one version of the candidate, and one of the reward.
//
// Owns one thread. Thread-safe.
class Shadows {
 public:
  static constexpr size_t kMostWaiting = 256, kMostBytes = 64 << 20;

  struct Result {
    std::string of;                                // Name of the reward that it is compared with.
    std::pair<std::string, std::string> versions;  // Of the candidate, and of that reward.
    absl::Time since;                              // When the counts began.
    Comparison comparison;
    uint64_t skipped = 0;
  };
  using Results = std::map<std::string, Result>;  // By the name of the candidate.

  explicit Shadows(Metrics metrics);
  ~Shadows();  // Calls Stop().

  // `scorer` is in use from now on. Where it has another version of a candidate or of its reward,
  // the counts begin anew. Returns those that have ended.
  Results Use(const Scorer& scorer);
  // `scorer` has scored these answers. What an earlier version has scored is not counted.
  void Add(std::shared_ptr<const Scorer> scorer, ScoredAnswers scored);
  Results results() const;
  // Ends after the answers that are being scored. Idempotent.
  void Stop();

 private:
  struct Item {
    std::shared_ptr<const Scorer> scorer;
    ScoredAnswers scored;
    size_t bytes = 0;  // Of `scored`.
  };
  void Run();
  void Compare(const Item& item);
  // Null: the counts are those of other versions.
  Result* FindResult(const Scorer& scorer, const RewardRule& candidate)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Metrics metrics_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Item> waiting_ ABSL_GUARDED_BY(mu_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  Results results_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::reward
