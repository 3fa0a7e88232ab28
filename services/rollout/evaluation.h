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
#include "services/rollout/remote_scorer.h"

namespace sluice::rollout {

// What the `eval` block of a job file asks of this daemon.
struct EvalSpec {
  struct Dataset {
    std::string name, path, format;
    std::map<std::string, std::string> fields;  // Column by the name that it gets in the row.
    // Its rewards ask judges, plug-ins or sandboxes, so reward daemons score its answers.
    bool scored_remotely = false;
  };
  std::vector<Dataset> datasets;
  uint32_t samples = 1;
  SamplingParams sampling;
  uint64_t seed = 0;
  double share = 0.1;  // Share of the session's slots and threads, and of a busy processor.
  // Scores with the job's rewards. Empty: the job has no evaluations.
  std::optional<Scorer> scorer;
};

// Returns the nice value at which a thread gets about `share`, in (0, 1], of a processor that a
// thread with nice value 0 uses too. With each step of the nice value the kernel gives a thread
// 1.25 times less weight.
int NiceValueFor(double share);

// Evaluates versions of a job while the session goes on sampling. Each evaluation has an engine of
// its own, so all its answers are of the version that was asked for, even if the session's engine
// changes to another. This engine exists only during the evaluation. It needs memory for another
// copy of the weights, and for the keys and values of its slots.
//
// Thread-safe. Owns one thread, `evaluate`, while an evaluation is under way.
class Evaluations {
 public:
  struct Options {
    EvalSpec spec;
    EngineSpec engine;   // As for the session's engine.
    uint32_t slots = 1;  // Slots of the session's engine.
    std::string chat_template;
    uint32_t max_prompt = 0;  // In tokens; rows with longer prompts are left out.
    WeightFetcher fetcher;
    RemoteScorer* remote = nullptr;  // Outlives the evaluations.
  };
  struct Task {
    PublishedVersion version;
    std::string dataset;
    std::string trainer;  // HOST:PORT of the trainer that has the version.
  };
  // Runs on the `evaluate` thread; must not block.
  using Done = std::function<void(absl::StatusOr<EvalResult> result)>;

  explicit Evaluations(Options options) : options_(std::move(options)) {}
  // Cancels a running evaluation and joins the thread.
  ~Evaluations();
  Evaluations(const Evaluations&) = delete;
  Evaluations& operator=(const Evaluations&) = delete;

  // Starts an evaluation and returns its number, for Cancel(). `done` is called once.
  // NOT_FOUND: the job has no such dataset.
  // RESOURCE_EXHAUSTED BUSY: another evaluation is running.
  // UNAVAILABLE: the job leaves this worker.
  absl::StatusOr<uint64_t> Start(Task task, Done done) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the evaluation with CANCELLED before its next step. Does nothing if it is unknown or over.
  void Cancel(uint64_t task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::StatusOr<EvalResult> Run(const Task& task, const EvalSpec::Dataset& dataset,
                                 rpc::Cancel* cancel) const;

  const Options options_;
  Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;  // Number of the last task.
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;                  // The destructor has begun.
  std::shared_ptr<rpc::Cancel> cancel_ ABSL_GUARDED_BY(mu_);  // Cancels the last task.
  // Thread of the last task. It is joined when the next task starts, or by the destructor.
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rollout
