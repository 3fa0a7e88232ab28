// Compares staleness policies when durations have a long tail. A simulated fleet (192 rollouts at
// once, log-normal durations) and a simulated trainer (64 trajectories a step, staleness at most 2)
// use the real state machine, and two models of what other systems do. Time is simulated, so the
// figures are the same on every machine.
//   bench_queue_policies [--json] [--steps 1000] [--sigma 0.5 1.2 1.8] [--step-seconds 20]
//
// The policies, where eta is the largest staleness that is allowed, eta_adm the staleness up to
// which rollouts are admitted, v the trainer's version, and B the trajectories of a batch:
//   gate        AReaL's count gate: a rollout starts while accepted + running < (eta + v + 1) B;
//               batches are taken in order of finishing
//   gate_drop   the same, but trajectories that are too old at the cut are dropped
//   wait, mask  the queue's straggler policies with eta_adm = eta
//   auto        the queue's policy mask, with an admission window that adapts itself
#include <CLI/CLI.hpp>

#include <cmath>
#include <queue>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "tests/bench/queue/policy_backends.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

constexpr double kTokensPerSecond = 4;  // Of one rollout.
constexpr int64_t kWarmUp = 100;        // The first steps, which are not counted.

// The duration of a rollout: log-normal with mean 1. Apart from `sigma` it depends on the id alone,
// so that every policy meets the same rollouts.
double DurationOf(uint64_t id, double sigma) {
  SplitMix64 random(Mix64(id + 1));
  const auto uniform = [&] {
    return (static_cast<double>(random.Next() >> 11) + 0.5) / 9007199254740992.0;
  };
  const double normal =
      std::sqrt(-2 * std::log(uniform())) * std::cos(2 * 3.14159265358979323846 * uniform());
  return std::exp(sigma * normal - sigma * sigma / 2);
}

struct Outcome {
  int64_t trained = 0, violations = 0, dropped = 0, ended = 0;
  double trained_tokens = 0, ended_tokens = 0, masked_tokens = 0, generated_tokens = 0;
  double idle = 0, elapsed = 0, admission = 0;

  double length_ratio() const {
    return trained_tokens / static_cast<double>(trained) /
           (ended_tokens / static_cast<double>(ended));
  }
};

class Simulation {
 public:
  Simulation(const Workload& workload, double sigma, std::unique_ptr<Backend> backend)
      : workload_(workload), sigma_(sigma), backend_(std::move(backend)) {}

  Outcome Run(int64_t steps) {
    while (version_ < steps) {
      FillEngines();
      // Without a step and without a rollout that runs, nothing could happen any more.
      if (!training_ && !StartStep()) {
        SLUICE_CHECK(!finishing_.empty());
      }
      const bool step_ends =
          training_ && (finishing_.empty() || step_end_ <= finishing_.top().first);
      now_ = step_ends ? step_end_ : finishing_.top().first;

      if (step_ends) {
        EndStep();
      } else {
        const uint64_t id = finishing_.top().second;
        finishing_.pop();
        if (running_.contains(id)) FinishRollout(id);
      }
      RemoveDropped();
    }

    outcome_.elapsed = now_ - counted_from_;
    outcome_.admission = backend_->admission();
    return outcome_;
  }

 private:
  bool counted() const { return version_ >= kWarmUp; }

  void FillEngines() {
    while (running_.size() < workload_.running) {
      const std::vector<uint64_t> started =
          backend_->StartRollouts(now_, static_cast<uint32_t>(workload_.running - running_.size()));
      if (started.empty()) return;
      for (uint64_t id : started) {
        Rollout rollout{
            .id = id, .started = now_, .seconds = DurationOf(id, sigma_) * workload_.mean_seconds};
        rollout.tokens =
            std::max<uint64_t>(1, static_cast<uint64_t>(rollout.seconds * kTokensPerSecond));
        finishing_.push({now_ + rollout.seconds, id});
        running_.emplace(id, std::move(rollout));
      }
    }
  }
  // Writes what the engine has sampled since the last write, under the version that it holds. With
  // `all`, it writes up to the end.
  void WriteSampled(Rollout& rollout, bool all) {
    const double share = std::min(1.0, (now_ - rollout.started) / rollout.seconds);
    const uint64_t until =
        all ? rollout.tokens : static_cast<uint64_t>(static_cast<double>(rollout.tokens) * share);
    if (until <= rollout.written) return;
    const VersionRun run{{1, version_}, static_cast<uint32_t>(until - rollout.written), 0};
    backend_->OnWritten(now_, rollout, run);
    rollout.runs.push_back(run);
    rollout.written = until;
    if (counted()) outcome_.generated_tokens += run.count;
  }
  void FinishRollout(uint64_t id) {
    Rollout& rollout = running_.at(id);
    WriteSampled(rollout, true);
    backend_->OnFinished(now_, rollout);
    CountEnded(rollout);
    finished_.emplace(id, std::move(rollout));
    running_.erase(id);
  }
  void CountEnded(const Rollout& rollout) {
    if (!counted()) return;
    ++outcome_.ended;
    outcome_.ended_tokens += static_cast<double>(rollout.tokens);
  }
  void RemoveDropped() {
    for (uint64_t id : backend_->TakeDropped()) {
      if (running_.contains(id)) CountEnded(running_.at(id));
      running_.erase(id);
      finished_.erase(id);
      outcome_.dropped += counted();
    }
  }
  bool StartStep() {
    const std::vector<Trained> batch = backend_->CutBatch(now_);
    if (batch.empty()) return false;
    for (const Trained& trained : batch) CheckTrained(trained);
    if (counted()) outcome_.idle += now_ - free_since_;
    training_ = true;
    step_end_ = now_ + workload_.step_seconds;
    return true;
  }
  // Checks a trained trajectory against the simulation's own record. It is a violation if a token
  // that is not masked is staler than eta.
  void CheckTrained(const Trained& trained) {
    const Rollout& rollout = finished_.at(trained.id);
    uint64_t place = 0;
    bool violates = false;
    for (const VersionRun& run : rollout.runs) {
      for (uint64_t end = place + run.count; place < end; ++place) {
        if (version_ - run.version.number <= workload_.staleness) continue;
        bool masked = false;
        for (const queue::TokenRun& out : trained.mask)
          masked |= out.first <= place && place < out.first + out.count;
        violates |= !masked;
      }
    }

    if (counted()) {
      ++outcome_.trained;
      outcome_.violations += violates;
      outcome_.trained_tokens += static_cast<double>(rollout.tokens);
      outcome_.masked_tokens += static_cast<double>(trained.masked);
    }
    finished_.erase(trained.id);
  }
  void EndStep() {
    for (auto& [id, rollout] : running_) WriteSampled(rollout, false);
    backend_->OnApplied(now_);
    ++version_;
    training_ = false;
    free_since_ = now_;
    if (version_ == kWarmUp) counted_from_ = now_;
  }

  using Finishing = std::pair<double, uint64_t>;
  const Workload workload_;
  const double sigma_;
  const std::unique_ptr<Backend> backend_;
  Outcome outcome_;
  double now_ = 0, step_end_ = 0, free_since_ = 0, counted_from_ = 0;
  int64_t version_ = 0;
  bool training_ = false;
  std::map<uint64_t, Rollout> running_, finished_;
  std::priority_queue<Finishing, std::vector<Finishing>, std::greater<>> finishing_;
};

void Measure(const Report& report, const Workload& workload, double sigma, int64_t steps) {
  struct Policy {
    const char* name;
    std::unique_ptr<Backend> backend;
  };

  Policy policies[] = {{"gate", MakeGate(workload, false)},
                       {"gate_drop", MakeGate(workload, true)},
                       {"wait", MakeQueue(workload, queue::Straggler::kWait, false)},
                       {"mask", MakeQueue(workload, queue::Straggler::kMask, false)},
                       {"auto", MakeQueue(workload, queue::Straggler::kMask, true)}};
  double gate_idle = 0;

  for (Policy& policy : policies) {
    const Outcome outcome = Simulation(workload, sigma, std::move(policy.backend)).Run(steps);
    const std::string name = absl::StrCat("sigma_", sigma, ".", policy.name, ".");
    const double idle = outcome.idle / outcome.elapsed;
    if (policy.name == std::string("gate")) gate_idle = idle;
    const int runs = static_cast<int>(steps - kWarmUp);
    report.Add({.name = name + "violations",
                .value = static_cast<double>(outcome.violations),
                .unit = "trajectories",
                .baseline = static_cast<double>(outcome.trained),
                .runs = runs});
    report.Add({.name = name + "dropped",
                .value = static_cast<double>(outcome.dropped),
                .unit = "trajectories",
                .baseline = static_cast<double>(outcome.ended),
                .runs = runs});
    report.Add({.name = name + "trainer_idle",
                .value = idle,
                .unit = "share",
                .baseline = gate_idle,
                .runs = runs});
    report.Add(
        {.name = name + "length_ratio", .value = outcome.length_ratio(), .unit = "", .runs = runs});
    report.Add({.name = name + "tokens_masked",
                .value = outcome.masked_tokens / outcome.generated_tokens,
                .unit = "share",
                .runs = runs});
    report.Add({.name = name + "admission_staleness",
                .value = outcome.admission,
                .unit = "versions",
                .baseline = static_cast<double>(workload.staleness),
                .runs = runs});
  }
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  CLI::App app(
      "Compares staleness policies for long-tailed rollouts, in a simulation around the queue's "
      "state machine.");
  bool json = false;
  int64_t steps = 1000;
  std::vector<double> sigmas = {0.5, 1.2, 1.8};
  sluice::bench::Workload workload;
  app.add_flag("--json", json, "print one JSON object per line");
  app.add_option("--steps", steps, "steps of each run; the first 100 are not counted")
      ->check(CLI::Range(200, 100000));
  app.add_option("--sigma", sigmas, "sigmas of the log-normal durations");
  app.add_option("--step-seconds", workload.step_seconds,
                 "seconds of a training step; a rollout takes 60 on average");
  CLI11_PARSE(app, argc, argv);
  const sluice::bench::Report report(json);
  for (double sigma : sigmas) sluice::bench::Measure(report, workload, sigma, steps);

  return 0;
}
