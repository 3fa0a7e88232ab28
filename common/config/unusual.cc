// Warns of values with which a job runs, but which are probably a mistake.

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/config/rules.h"
#include "common/config/scalar.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::config {
namespace {

// AdamW changes each weight by about the learning rate in every step, however small its gradient.
// Above this rate it destroys a model.
constexpr double kMostLearningRate = 1e-2;
// In policy versions. The importance weights of older tokens are mostly clipped.
constexpr uint32_t kMostStaleness = 16;
constexpr double kLeastTemperature = 0.1, kMostTemperature = 2;

void CheckUnusualTraining(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Optimizer& optimizer = spec.trainer().optimizer();
  check.WarnIf(optimizer.lr() > kMostLearningRate, "trainer.optimizer.lr", "is ",
               NumberText(optimizer.lr()), "; above ", NumberText(kMostLearningRate),
               " adamw mostly destroys a model. Usual values are 1e-6 to 1e-3");
  check.WarnIf(optimizer.lr() == 0, "trainer.optimizer.lr", "is 0: the weights never change");
  check.WarnIf(optimizer.lr() * optimizer.weight_decay() >= 1, "trainer.optimizer.weight_decay",
               "is ", NumberText(optimizer.weight_decay()),
               ": multiplied by lr, it removes each weight completely in every step");

  const bool bounded = spec.limits().has_max_steps();
  check.WarnIf(bounded && optimizer.warmup() >= spec.limits().max_steps(),
               "trainer.optimizer.warmup", "is ", optimizer.warmup(),
               ": the job ends at limits.max_steps = ", spec.limits().max_steps(),
               ", so it never leaves the warm-up");

  uint64_t longest = spec.model().max_context();
  if (spec.kind() == "rl")
    longest = std::min(longest,
                       uint64_t{spec.data().order().max_prompt()} + spec.rollout().max_response());
  const job::v1::Batching& batching = spec.trainer().batching();
  const uint32_t micro_batch = batching.micro_batch_tokens();
  const bool whole = batching.recompute_activations() == "none";
  check.WarnIf(
      micro_batch < longest && spec.kind() == "rl" && (whole || micro_batch < 256),
      "trainer.batching.micro_batch_tokens", "is ", micro_batch, ", and one sequence may have ",
      longest,
      " tokens (data.order.max_prompt + rollout.max_response, at most model.max_context): ",
      whole ? "with recompute_activations: none a longer sequence gets a micro-batch of its own, "
              "which needs more memory than this value allows"
            : "a longer sequence is computed in parts of this many tokens, and parts of less than "
              "256 take much longer");
}

void CheckUnusualSampling(const job::v1::JobSpec& spec, SpecProblems& check) {
  const uint64_t longest =
      uint64_t{spec.data().order().max_prompt()} + spec.rollout().max_response();
  check.WarnIf(longest > spec.model().max_context(), "model.max_context", "is ",
               spec.model().max_context(),
               ", less than data.order.max_prompt + rollout.max_response = ", longest,
               ": answers to long prompts are cut short");

  const double temperature = spec.rollout().sampling().temperature();
  check.WarnIf(temperature < kLeastTemperature || temperature > kMostTemperature,
               "rollout.sampling.temperature", "is ", NumberText(temperature),
               temperature < 1 ? ": the answers of a group will hardly differ"
                               : ": answers will be mostly noise",
               ". Usual values are 0.6 to 1.2");

  const uint32_t staleness = spec.queue().max_staleness();
  const bool follows = spec.algorithm().loss().ess_lr() != "none";
  check.WarnIf(staleness > kMostStaleness && !follows, "queue.max_staleness", "is ", staleness,
               ": tokens that are more than ", kMostStaleness,
               " versions old teach little. Usual values are 0 to 8");
  const job::v1::Loss& loss = spec.algorithm().loss();
  check.WarnIf(staleness > 1 && loss.tis_outside() == "drop" && loss.prox() != "exact",
               "algorithm.loss.tis_outside", "is drop, and queue.max_staleness is ", staleness,
               ": the weights of old tokens leave their bounds because the policy has learned, so "
               "the tokens that it learned most from are left out. With algorithm.loss.prox: exact "
               "the bounds hold for the difference of rollout and trainer alone; with tis_outside: "
               "clip no token is left out");
  check.WarnIf(
      loss.clip_low() == 0 && loss.clip_high() == 0, "algorithm.loss.clip_high",
      "and clip_low are both 0: the clip range has no width, so hardly any token is trained on");
}

// What mask gives a long answer, tokens of newer versions, finish keeps from it.
void CheckUnusualFinish(const job::v1::JobSpec& spec, SpecProblems& check) {
  check.WarnIf(spec.weights().inflight() == "finish" && spec.queue().straggler().policy() == "mask",
               "queue.straggler.policy",
               "is mask, with which a late answer gains tokens of newer versions; with "
               "weights.inflight: finish it gains none, and is dropped whole if it ends too late. "
               "wait holds the step for it; drop and shrink end it sooner");
}

void CheckUnusualTransports(const job::v1::JobSpec& spec, SpecProblems& check) {
  check.WarnIf(spec.weights().ucx() && spec.weights().has_broadcast(), "weights.broadcast", "is ",
               spec.weights().broadcast(),
               ", and weights.ucx is true: rollouts that can "
               "read over UCX take part in no broadcast. Leave out one of the two");
}

void CheckUnusualKeeping(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Checkpoint& checkpoint = spec.checkpoint();
  check.WarnIf(checkpoint.every_steps() == 0 && !checkpoint.has_every(), "checkpoint.every_steps",
               "is 0 and checkpoint.every none: a crash loses all that was trained");
  check.WarnIf(checkpoint.keep_last() == 1, "checkpoint.keep_last",
               "is 1: if that checkpoint is damaged, there is none to go back to");

  const job::v1::Limits& limits = spec.limits();
  check.WarnIf(limits.stall_fail().seconds() < limits.stall_warn().seconds(), "limits.stall_fail",
               "is shorter than limits.stall_warn: the job fails before it warns");
  for (int i = 0; i < spec.data().train_size(); ++i) {
    check.WarnIf(spec.data().train(i).weight() == 0, absl::StrCat("data.train.", i, ".weight"),
                 "is 0: rows of ", spec.data().train(i).name(), " are not drawn");
  }
}

// Whether two generators make a task in common: those of one kind, seed and level are the same in
// the same place.
bool MakeTheSame(const job::v1::Generator& a, const job::v1::Generator& b) {
  if (a.kind() != b.kind() || a.seed() != b.seed() || a.levels().empty() || b.levels().empty())
    return false;
  // After this many places the levels of both begin again.
  const int places = std::lcm(a.levels_size(), b.levels_size());
  for (int i = 0; i < places; ++i) {
    if (a.levels(i % a.levels_size()) == b.levels(i % b.levels_size())) return true;
  }
  return false;
}

void CheckUnusualGenerators(const job::v1::JobSpec& spec, SpecProblems& check) {
  for (int i = 0; i < spec.eval().datasets_size() && spec.eval().every_steps() > 0; ++i) {
    const job::v1::DataSource& held_out = spec.eval().datasets(i);
    for (int j = 0; j < spec.data().train_size(); ++j) {
      const job::v1::DataSource& train = spec.data().train(j);
      if (!held_out.has_generator() || !train.has_generator()) continue;
      check.WarnIf(MakeTheSame(held_out.generator(), train.generator()),
                   absl::StrCat("eval.datasets.", i, ".generator"), "makes tasks that data.train.",
                   j, " is trained on, since both have the seed ", train.generator().seed(),
                   "; give it another one");
    }
  }
}

}  // namespace

void CheckUnusual(const job::v1::JobSpec& spec, SpecProblems* problems) {
  CheckUnusualTraining(spec, *problems);
  if (spec.kind() == "rl") CheckUnusualSampling(spec, *problems);
  CheckUnusualFinish(spec, *problems);
  CheckUnusualTransports(spec, *problems);
  CheckUnusualKeeping(spec, *problems);
  CheckUnusualGenerators(spec, *problems);
}

}  // namespace sluice::config
