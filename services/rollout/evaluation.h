#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/cancel.h"
#include "common/scoring/scorer.h"
#include "common/weights/fetcher.h"
#include "services/rollout/core/eval/eval.h"

namespace sluice::rollout {

// What a job's `eval` block asks of this daemon.
struct EvalSpec {
  struct Dataset {
    std::string name, path, format;
    std::map<std::string, std::string> fields;  // Name in the row -> column.
  };
  std::vector<Dataset> datasets;
  uint32_t samples = 1;
  SamplingParams sampling;
  uint64_t seed = 0;
  double share = 0.1;            // Of the session's slots and threads, and of a busy processor.
  std::optional<Scorer> scorer;  // Of the job's rewards. Nothing: the job evaluates nothing.
};

// The nice value at which a thread gets about `share` of a processor that another thread at 0 wants
// too. The kernel weighs a thread 1.25 times less for each step. `share` in (0, 1].
int NiceOf(double share);

// Evaluates versions of a job beside the session's own work: in an engine of its own, so that every
// answer is of the one version that was asked for, whatever the session's engine switches to
// meanwhile. That engine lives as long as the evaluation and costs as much memory as the session's
// weights do, and keys and values of its slots.
//
// Thread-safe. Owns one thread, `evaluate`, while an evaluation is under way.
class Evaluations {
 public:
  struct Options {
    EvalSpec spec;
    EngineSpec engine;   // The session's.
    uint32_t slots = 1;  // Of the session's engine.
    std::string chat_template;
    uint32_t max_prompt = 0;  // Tokens.
    WeightFetcher fetcher;
  };
  struct Task {
    LatestVersion version;
    std::string dataset;
    std::string trainer;  // HOST:PORT of who has the version.
  };
  // Runs on the `evaluate` thread; must not block.
  using Done = std::function<void(absl::StatusOr<EvalResult> result)>;

  explicit Evaluations(Options options) : options_(std::move(options)) {}
  // Cancels, and waits for the thread.
  ~Evaluations();
  Evaluations(const Evaluations&) = delete;
  Evaluations& operator=(const Evaluations&) = delete;

  // Begins the task and answers with its number, for Cancel(). `done` is called once.
  // NOT_FOUND: no such dataset. RESOURCE_EXHAUSTED BUSY: another one is under way.
  absl::StatusOr<uint64_t> Start(Task task, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends that task before its next step, with CANCELLED. Unknown, or over: nothing happens.
  void Cancel(uint64_t task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<EvalResult> Run(const Task& task, const EvalSpec::Dataset& dataset,
                                 rpc::Cancel* cancel) const;

  const Options options_;
  Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<rpc::Cancel> cancel_ ABSL_GUARDED_BY(mu_);  // Of the last task.
  // Of the last task; joinable until the next one.
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rollout
