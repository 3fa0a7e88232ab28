#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/scoring/scorer.h"
#include "services/reward/comparison.h"
#include "services/reward/metrics.h"

namespace sluice::reward {

// Has the candidates of a job (`shadow` of an entry of its rewards) score answers that were scored
// already, and compares. Candidates change nothing: they have a thread of their own, and answers
// that come while it is busy with kMostWaiting others are skipped and counted.
//
// Owns one thread. Thread-safe.
class Shadows {
 public:
  static constexpr size_t kMostWaiting = 256;

  struct Result {
    std::string of;  // Name of the reward that it is compared with.
    Comparison comparison;
    uint64_t skipped = 0;
  };

  explicit Shadows(Metrics metrics);
  ~Shadows();  // Calls Stop().

  // `scorer` has scored these answers.
  void Add(std::shared_ptr<const Scorer> scorer, ScoredAnswers scored);
  std::map<std::string, Result> results() const;  // By the name of the candidate.
  // Ends after the answers that are being scored. Idempotent.
  void Stop();

 private:
  struct Item {
    std::shared_ptr<const Scorer> scorer;
    ScoredAnswers scored;
  };
  void Run();
  void Compare(const Item& item);

  const Metrics metrics_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Item> waiting_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Result> results_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace sluice::reward
