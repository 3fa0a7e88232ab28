#include "common/config/rules.h"

#include <google/protobuf/util/message_differencer.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/validate.h"
#include "common/base/status.h"
#include "common/checkpoint/layer_matrices.h"
#include "common/config/algorithm_spec.h"
#include "common/config/check.h"
#include "common/config/columns.h"
#include "common/config/job_file.h"
#include "common/config/leaves.h"
#include "common/config/scalar.h"
#include "common/data/generator.h"
#include "common/optim/schedule.h"
#include "common/scoring/job_scorer.h"
#include "common/verifiers/verifier.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::Message;

bool IsJobName(const std::string& name) {
  if (name.empty() || name.size() > 63 || name[0] == '-') return false;
  for (char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') return false;
  }
  return true;
}

// Reports names that occur more than once in a list.
template <typename Entries>
void CheckNames(const Entries& entries, const std::string& path, SpecProblems& check) {
  std::set<std::string> seen;
  for (int i = 0; i < entries.size(); ++i) {
    check.Require(seen.insert(entries[i].name()).second, absl::StrCat(path, ".", i, ".name"), "\"",
                  entries[i].name(), "\" is taken; names must differ");
  }
}

void CheckAlgorithm(const job::v1::JobSpec& spec, SpecProblems& check) {
  const AlgorithmContext context{.group_size = spec.rollout().group().size(),
                                 .minibatches = spec.trainer().batching().minibatches(),
                                 .has_reference = spec.model().has_reference(),
                                 .has_teacher = spec.model().has_teacher()};
  for (const AlgorithmProblem& problem : ValidateAlgorithm(AlgorithmSpecOf(spec), context)) {
    check.Add(10, absl::StrCat("algorithm.", problem.field), ": ", problem.message);
  }
}

bool AppliesTo(const job::v1::RewardEntry& entry, const std::string& source) {
  const auto& sources = entry.when().data_source();
  if (entry.has_shadow()) return false;  // It decides nothing.
  return sources.empty() || absl::c_linear_search(sources, source);
}

void CheckNoEvalSampling(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Eval& eval = spec.eval();
  job::v1::Eval plain;
  FillDefaults(&plain);
  const auto require = [&](bool same, const char* key) {
    check.Require(same, absl::StrCat("eval.", key), "is not used by kind: ", spec.kind(),
                  ", whose evaluation is the loss of the rows' own answers; leave it out");
  };
  require(eval.samples() == plain.samples(), "samples");
  require(eval.temperature() == plain.temperature(), "temperature");
  require(eval.share() == plain.share(), "share");
}

void CheckGenerators(const google::protobuf::RepeatedPtrField<job::v1::DataSource>& sources,
                     const std::string& path, SpecProblems& check) {
  for (int i = 0; i < sources.size(); ++i) {
    if (!sources[i].has_generator()) continue;
    const std::string key = absl::StrCat(path, ".", i, ".generator");
    check.Require(sources[i].path().empty(), key,
                  "contradicts the path of the source; give one of them");
    const absl::Status status = CheckGenerator(GeneratorOf(sources[i].generator()));
    if (!status.ok()) check.Add(10, key, ": ", status.message());
  }
}

void CheckEval(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Eval& eval = spec.eval();
  // Without evaluation, the other keys do not matter.
  if (eval.every_steps() == 0) return;
  CheckGenerators(eval.datasets(), "eval.datasets", check);
  // The trainer of the other kinds scores the answers of the rows, and samples none.
  if (spec.kind() != "rl") CheckNoEvalSampling(spec, check);
  check.Require(eval.datasets_size() > 0, "eval.datasets", "is empty, but eval.every_steps is ",
                eval.every_steps(), "; name at least one dataset, or leave eval.every_steps out");
  check.Require(eval.samples() <= 1 || eval.temperature() > 0, "eval.samples", "is ",
                eval.samples(),
                ", but at eval.temperature 0 all answers to a row are the same; give a "
                "temperature, or ask once");

  std::set<std::string> seen;
  for (int i = 0; i < eval.datasets_size(); ++i) {
    const job::v1::DataSource& dataset = eval.datasets(i);
    const std::string path = absl::StrCat("eval.datasets.", i);
    const std::string& name = dataset.name();
    check.Require(name.empty() || seen.insert(name).second, path + ".name", "\"", name,
                  "\" is taken; names must differ");
    check.Require(
        !absl::StrContains(name, '/'), path + ".name", "\"", name,
        "\" has a slash; results are named eval/NAME/reward, so a name must not have one");
    check.Require(dataset.weight() == 1, path + ".weight", "is ", dataset.weight(),
                  ", but all datasets of eval have equal weight; leave it out");
    // Each dataset needs a reward that counts and applies to it.
    const bool scored =
        absl::c_any_of(WithoutShadows(spec.reward()).rewards(),
                       [&](const job::v1::RewardEntry& entry) { return AppliesTo(entry, name); });
    check.Require(scored || spec.reward().rewards().empty(), path + ".name", "\"", name,
                  "\" is in no reward's when.data_source, so nothing scores its answers; "
                  "give it the name of a source that has a reward, or add its name there");
  }
}

// The highest reward that verifiers of this build can give; nothing if a plug-in may give more.
std::optional<double> HighestReward(const job::v1::Reward& reward) {
  double highest = 0;
  const job::v1::Reward counted = WithoutShadows(reward);
  for (const job::v1::RewardEntry& entry : counted.rewards()) {
    if (entry.verifier() == "plugin" || reward.combine() != "sum") return std::nullopt;
    highest += std::max(0.0, entry.weight());
  }
  return highest;
}

// Samplers that go by rewards.
void CheckSampler(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::DataOrder& order = spec.data().order();
  const std::string& sampler = order.sampler();
  job::v1::DataOrder plain;
  FillDefaults(&plain);
  if (sampler != "levels") {
    const auto require = [&](bool same, const char* key) {
      check.Require(same, absl::StrCat("data.order.", key),
                    "has an effect only with sampler: levels; leave it out");
    };
    require(order.level_up() == plain.level_up(), "level_up");
    require(order.level_window() == plain.level_window(), "level_window");
  }
  check.Require(order.has_rest_after() || order.rest_steps() == plain.rest_steps(),
                "data.order.rest_steps", "has an effect only with rest_after; leave it out");
  check.Require(!order.has_rest_after() || sampler != "uniform", "data.order.rest_after", "is ",
                order.rest_after(),
                ", but sampler: uniform draws each row once in each epoch, whatever it earns; "
                "use levels or adaptive");
  if (sampler == "uniform") return;

  check.Require(spec.kind() == "rl" && !spec.reward().rewards().empty(), "data.order.sampler",
                "is ", sampler, ", which goes by rewards, and this job has none; use uniform");
  check.Require(!order.has_epochs(), "data.order.epochs", "is ", order.epochs(),
                ", but sampler: ", sampler,
                " makes no passes over the data; leave it out, and set limits.max_steps");
  const std::optional<double> highest = HighestReward(spec.reward());
  check.Require(!order.has_rest_after() || !highest.has_value() || *highest >= 1 - 1e-6,
                "data.order.rest_after", "is ", order.rest_after(),
                ", but no answer can earn more than ", NumberText(highest.value_or(0)),
                ", so no row would ever be answered perfectly, which takes 1; leave it out");
  if (sampler != "levels") return;

  bool one_level = true;
  for (int i = 0; i < spec.data().train_size(); ++i) {
    const job::v1::DataSource& source = spec.data().train(i);
    const auto& levels = source.generator().levels();
    const std::set<uint32_t> different(levels.begin(), levels.end());
    one_level = one_level && source.has_generator() && different.size() < 2;
    check.Require(source.has_generator() || source.fields().contains("level"),
                  absl::StrCat("data.train.", i, ".fields"),
                  "names no column for level, by which data.order.sampler: levels orders the rows; "
                  "add it, as in fields: {level: difficulty}, or use sampler: uniform");
  }
  check.Require(!one_level, "data.order.sampler",
                "is levels, but each source has one level only; give a generator several, as in "
                "levels: [1, 2, 3], or use uniform");
  check.Require(!highest.has_value() || order.level_up() <= *highest, "data.order.level_up", "is ",
                NumberText(order.level_up()), ", but no answer can earn more than ",
                NumberText(highest.value_or(0)), ", so that no level would ever be left");
}

// Whether every answer gets reward 0, so that nothing could be learned.
bool IsAlwaysZero(const job::v1::Reward& all) {
  const job::v1::Reward reward = WithoutShadows(all);
  const auto weighs_nothing = [](const job::v1::RewardEntry& entry) { return entry.weight() == 0; };
  const bool gated = absl::c_any_of(
      reward.rewards(), [](const auto& entry) { return entry.gate() && entry.gate_fail() != 0; });
  if (gated) return false;
  return reward.combine() == "product" ? absl::c_any_of(reward.rewards(), weighs_nothing)
                                       : absl::c_all_of(reward.rewards(), weighs_nothing);
}

// A candidate is compared with another reward, and changes nothing.
void CheckShadow(const job::v1::Reward& reward, const job::v1::RewardEntry& entry,
                 const std::string& path, SpecProblems& check) {
  if (!entry.has_shadow()) return;
  const job::v1::Reward counted = WithoutShadows(reward);
  std::vector<std::string> others;
  for (const job::v1::RewardEntry& other : counted.rewards()) others.push_back(other.name());
  check.Require(absl::c_linear_search(others, entry.shadow()), path + ".shadow", "is \"",
                entry.shadow(), "\", which is no reward that counts; ",
                others.empty() ? "there is none: leave it out"
                               : absl::StrCat("name one of ", absl::StrJoin(others, ", ")));
  check.Require(!entry.gate(), path + ".gate",
                "is true, but this reward is a candidate (shadow), which decides nothing; leave "
                "gate or shadow out");
  check.Require(entry.weight() == 1, path + ".weight", "is ", entry.weight(),
                ", but this reward is a candidate (shadow), which has no part in the sum; leave "
                "it out");
  check.Require(entry.granularity() != "group" || ScoresGroups(counted), path + ".granularity",
                "is group, but this reward is a candidate (shadow), and no reward that counts "
                "scores groups, so it would get no group to score; leave it out");
}

void CheckRewards(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Reward& reward = spec.reward();
  // CheckValues() has made sure that the job learns from no reward then.
  if (reward.rewards().empty()) {
    check.Require(
        spec.eval().every_steps() == 0, "eval.every_steps", "is ", spec.eval().every_steps(),
        ", but reward.rewards is empty, so nothing scores the answers; add a reward, which "
        "is then reported and not learned from, or leave eval.every_steps out");
    return;
  }
  std::vector<std::string> sources;
  for (const job::v1::DataSource& source : spec.data().train()) sources.push_back(source.name());
  std::set<std::string> scored;

  for (int i = 0; i < reward.rewards_size(); ++i) {
    const job::v1::RewardEntry& entry = reward.rewards(i);
    const std::string path = absl::StrCat("reward.rewards.", i);
    // The arguments are checked by making the verifier.
    const auto verifier = MakeVerifierOf(entry);
    if (!verifier.ok()) check.Add(10, path + ".args", ": ", verifier.status().message());

    check.Require(entry.granularity() != "group" || entry.verifier() == "plugin",
                  path + ".granularity", "is group, but the verifier ", entry.verifier(),
                  " scores each answer by itself; leave it out, or use the verifier plugin");

    CheckShadow(reward, entry, path, check);
    const auto& named = entry.when().data_source();
    if (!entry.has_shadow()) scored.insert(named.begin(), named.end());
    if (!entry.has_shadow() && named.empty()) scored.insert(sources.begin(), sources.end());
    for (int j = 0; j < named.size(); ++j) {
      const std::string nearest = NearestWord(named[j], sources);
      check.Require(absl::c_linear_search(sources, named[j]),
                    absl::StrCat(path, ".when.data_source.", j), "is \"", named[j],
                    "\", a source that data.train does not have; it has ",
                    absl::StrJoin(sources, ", "),
                    nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest, "\"?"));
    }
  }

  for (const std::string& source : sources) {
    check.Require(scored.contains(source), "reward.rewards",
                  "has no entry that applies to the data source \"", source,
                  "\": none of its answers could be scored. Add one, or leave the source out");
  }
  check.Require(!ScoresGroups(reward) || spec.queue().straggler().policy() != "shrink",
                "queue.straggler.policy",
                "is shrink, which accepts a group when some of its members are scored, but a "
                "reward of granularity group is given only when all have answered; use wait, drop "
                "or mask");
  check.Require(LearnsFromNoReward(spec) || !IsAlwaysZero(reward), "reward.rewards",
                "gives 0 to every answer, because of weights of 0: nothing could be learned");
}

// A sandbox in which no interpreter could start would make every answer unscorable.
void CheckSandbox(const job::v1::RewardSandbox& sandbox, SpecProblems& check) {
  constexpr uint64_t kLeastMemory = 64 << 20;
  const std::string path = "reward.sandbox.";
  check.Require(sandbox.memory() >= kLeastMemory, path + "memory", "is ", sandbox.memory(),
                " bytes, but an interpreter needs at least 64MiB");
  check.Require(sandbox.pids() >= 8, path + "pids", "is ", sandbox.pids(),
                ", but a run needs at least 8");
  check.Require(sandbox.wall().seconds() > 0 || sandbox.wall().nanos() > 0, path + "wall",
                "is 0, so no program could run; wants more, such as 10s");
  check.Require(sandbox.cpu() >= 0.05, path + "cpu", "is ", sandbox.cpu(),
                " cores, but a run needs at least 0.05");
  check.Require(sandbox.output() > 0, path + "output",
                "is 0, so no program could answer; wants more, such as 1MiB");
  if (sandbox.tier() != "T2") return;
  const auto needs_own = [&](bool usual, const char* key, const char* value) {
    check.Require(usual, path + key, "is not ", value,
                  ", but with reward.sandbox.tier: T2 programs run in the sandboxes of a server, ",
                  "whose calls have no such limit; leave it out, or use tier auto, T1 or T1b");
  };
  needs_own(sandbox.cpu() == 1, "cpu", "1");
  needs_own(sandbox.pids() == 64, "pids", "64");
  needs_own(sandbox.output() <= 1 << 20, "output", "1MiB or less");
}

// Rewards of single tokens need advantages that are made of them, and a sum of which they are part.
void CheckTokenRewards(const job::v1::JobSpec& spec, SpecProblems& check) {
  if (!GivesTokenRewards(spec.reward())) return;
  const std::string& kind = spec.algorithm().advantage().kind();
  const Row<AdvantageRule>* advantage = FindRow(AdvantageRows(), kind);
  check.Require(
      advantage == nullptr || UsesTokenRewards(advantage->value), "algorithm.advantage.kind", "is ",
      kind,
      ", which gives all tokens of an answer the same advantage, but the judge's template "
      "prm rewards its steps one by one; use reinforce_pp or gae, or template: rubric");
  check.Require(spec.reward().combine() == "sum", "reward.combine", "is ", spec.reward().combine(),
                ", but the judge's template prm rewards single tokens, which are parts of a sum; "
                "use sum, or template: rubric");
}

// Groups in two waves. The rewards of the first one decide about the second.
void CheckWaves(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::RolloutGroup& group = spec.rollout().group();
  if (!group.has_first_wave()) return;
  const std::string key = "rollout.group.first_wave";
  check.Require(group.first_wave() < group.size(), key, "is ", group.first_wave(),
                ", but a group has no more than rollout.group.size = ", group.size(),
                " answers, so none would be left for a second wave; lower it, or leave it out");
  check.Require(group.min() <= group.first_wave(), "rollout.group.min", "is ", group.min(),
                ", but a group may end with its first wave of ", group.first_wave(),
                " answers; the maximum is rollout.group.first_wave");
  check.Require(!LearnsFromNoReward(spec) && !spec.reward().rewards().empty(), key, "is ",
                group.first_wave(),
                ", and rewards decide about the other answers, but this job learns from none; "
                "leave it out");
  check.Require(!ScoresGroups(spec.reward()), key, "is ", group.first_wave(),
                ", but a reward of granularity group compares all answers to a prompt at once, so "
                "it cannot decide how many there are; leave it out, or score answers one by one");
}

void CheckOptimizer(const job::v1::Optimizer& optimizer, SpecProblems& check) {
  const std::string path = "trainer.optimizer.";
  check.Require(optimizer.betas_size() == 2 && optimizer.betas(0) < 1 && optimizer.betas(1) < 1,
                path + "betas", "wants two values, both at least 0 and below 1");
  check.Require(
      optimizer.eps() > 0, path + "eps",
      "is 0: a weight whose gradient is 0 would become 0 / 0; wants more than 0, such as 1e-8");
}

// A schedule that falls to 0 must know the last step. Otherwise the learning rate would be 0 from
// the end of the warm-up on.
void CheckSchedule(const job::v1::JobSpec& spec, SpecProblems& check) {
  const std::string& name = spec.trainer().optimizer().schedule();
  const ScheduleRow* schedule = FindSchedule(name);
  if (schedule == nullptr || !schedule->needs_total() || spec.limits().has_max_steps()) return;
  check.Add(10, "trainer.optimizer.schedule", " is ", name,
            ", whose learning rate falls to 0 at limits.max_steps, but limits.max_steps is none. "
            "Set limits.max_steps to the number of steps, or schedule: constant");
}

void CheckSources(const job::v1::Data& data, SpecProblems& check) {
  CheckGenerators(data.train(), "data.train", check);
  CheckNames(data.train(), "data.train", check);
  check.Require(
      absl::c_any_of(data.train(), [](const auto& source) { return source.weight() > 0; }),
      "data.train", "draws nothing: the weight of every source is 0");
}

// Whether a block holds nothing but defaults.
bool IsPlain(const Message& value) {
  const std::unique_ptr<Message> plain(value.New());
  FillDefaults(plain.get());
  return google::protobuf::util::MessageDifferencer::Equals(value, *plain);
}

// Reports a block that this kind of job does not read, if it holds anything but defaults.
void CheckUnused(const job::v1::JobSpec& spec, absl::string_view block, const Message& value,
                 bool given, SpecProblems& check) {
  check.Require(!given || IsPlain(value), block, "is not used by kind: ", spec.kind(),
                "; leave the block out");
}

// Of the algorithm, training on the answers of rows has the load-balancing loss alone.
void CheckAlgorithmUnused(const job::v1::JobSpec& spec, SpecProblems& check) {
  job::v1::Algorithm rest = spec.algorithm();
  if (rest.has_loss()) rest.mutable_loss()->set_router_balance(0);
  check.Require(!spec.has_algorithm() || IsPlain(rest), "algorithm",
                "is not used by kind: ", spec.kind(),
                ", except for loss.router_balance; leave its other keys out");
}

// Formats a size rounded up to MiB. Numbers too large for a size get a fixed text.
std::string WholeMiB(double bytes) {
  return bytes < 0x1p62 ? SizeText((static_cast<uint64_t>(bytes / 1048576) + 1) * 1048576)
                        : "4194304TiB and more";
}

// The bounds on the drift move the admission staleness, so it must be able to move.
void CheckDriftBounds(const job::v1::Queue& queue, SpecProblems& check) {
  const job::v1::QueueAdmission& admission = queue.admission();
  const auto moves = [&](bool given, const char* key) {
    const std::string path = absl::StrCat("queue.admission.", key);
    check.Require(!given || !admission.has_staleness(), path,
                  "needs queue.admission.staleness: auto, which is ", admission.staleness());
    check.Require(!given || queue.max_staleness() > 0, path,
                  "is given, but with queue.max_staleness 0 there is nothing to lower; leave it "
                  "out");
  };
  moves(admission.has_min_ess(), "min_ess");
  moves(admission.has_max_kl(), "max_kl");
  check.Require(!admission.has_min_ess() || admission.min_ess() > 0, "queue.admission.min_ess",
                "is 0, which every step keeps; wants more than 0, or none");
  check.Require(!admission.has_max_kl() || admission.max_kl() > 0, "queue.admission.max_kl",
                "is 0, which no step keeps; wants more than 0, or none");
}

// Rows are sampled by no policy, so nothing drifts from it.
void CheckNoDriftBound(const job::v1::JobSpec& spec, bool given, const char* key,
                       SpecProblems& check) {
  check.Require(!given, absl::StrCat("queue.admission.", key), "is not used by kind: ", spec.kind(),
                "; leave it out");
}

void CheckQueue(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Queue& queue = spec.queue();

  // Weights that are published less often than this are too old when they are used.
  const uint64_t most_between = uint64_t{queue.max_staleness()} + 1;
  check.Require(spec.weights().every_steps() <= most_between, "weights.every_steps", "is ",
                spec.weights().every_steps(),
                ", but the maximum is queue.max_staleness + 1 = ", most_between,
                ": tokens that are older could never be trained on");
  check.Require(
      !queue.admission().has_staleness() || queue.admission().staleness() <= queue.max_staleness(),
      "queue.admission.staleness", "is ", queue.admission().staleness(),
      ", but the maximum is queue.max_staleness = ", queue.max_staleness());
  CheckDriftBounds(queue, check);
  check.Require(queue.straggler().policy() != "mask" || queue.admission().statistic() == "masked",
                "queue.straggler.policy", "mask needs queue.admission.statistic: masked");
  CheckQuota(spec, QueueTokenBytes(spec, nullptr), &check);
}

// A canary needs another rollout that it protects, and versions that come one after the other.
void CheckCanary(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Weights& weights = spec.weights();
  if (!weights.has_canary()) return;
  const uint32_t rollouts =
      std::max(spec.resources().rollout().min(), spec.resources().rollout().max());
  check.Require(spec.kind() == "rl", "weights.canary", "is not used by kind: ", spec.kind(),
                ", which has no rollouts; leave it out");
  check.Require(spec.kind() != "rl" || rollouts >= 2, "weights.canary",
                "needs at least 2 rollouts, but resources.rollout.max is ", rollouts,
                ": with one, no other is kept from a bad version");
  check.Require(weights.retain_versions() >= 2, "weights.retain_versions", "is ",
                weights.retain_versions(),
                ", but weights.canary needs at least 2: the version on trial and the promoted one");
  check.Require(weights.canary().max_gap() > 0, "weights.canary.max_gap", "is ",
                weights.canary().max_gap(),
                ", which every step of training passes; wants more than 0");
}

// Answers that end with the version that they began with, which rollouts hold for them.
void CheckInflight(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Weights& weights = spec.weights();
  if (weights.inflight() != "finish") {
    check.Require(!weights.has_resident_versions(), "weights.resident_versions", "is ",
                  weights.resident_versions(),
                  ", but a rollout holds one version unless weights.inflight is finish; leave it "
                  "out");
    return;
  }
  check.Require(spec.kind() == "rl", "weights.inflight", "is not used by kind: ", spec.kind(),
                ", which has no rollouts; leave it out");
  if (spec.kind() != "rl") return;

  // A version that is more than max_staleness behind has no answer that will be trained on.
  const uint64_t most = uint64_t{spec.queue().max_staleness()} + 1;
  check.Require(most > 1, "weights.inflight",
                "is finish, but with queue.max_staleness 0 no answer is trained on that ends after "
                "its version was replaced; use switch, or raise queue.max_staleness");
  check.Require(most == 1 || weights.resident_versions() <= most, "weights.resident_versions",
                "is ", weights.resident_versions(),
                ", but the maximum is queue.max_staleness + 1 = ", most,
                ": answers of older versions could never be trained on");
  check.Require(weights.kv_cache() != "recompute", "weights.kv_cache",
                "is recompute, but with weights.inflight: finish no answer of the job goes on with "
                "new weights; leave it out");
}

// A broadcast is for several rollouts that get a version at the same time.
void CheckBroadcast(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Weights& weights = spec.weights();
  if (!weights.has_broadcast()) return;
  const uint32_t rollouts =
      std::max(spec.resources().rollout().min(), spec.resources().rollout().max());
  const uint32_t least = weights.has_canary() ? 3 : 2;
  check.Require(spec.kind() == "rl", "weights.broadcast", "is not used by kind: ", spec.kind(),
                ", which has no rollouts; leave it out");
  check.Require(
      spec.kind() != "rl" || rollouts >= least, "weights.broadcast", "needs at least ", least,
      " rollouts", weights.has_canary() ? ", because the canary gets each version alone" : "",
      ", but resources.rollout.max is ", rollouts, ": a version is broadcast to several at once");
}

// A deterministic job gives the same weights each time, so no decision may depend on the clock or
// on the order of arrival.
void CheckDeterministic(const job::v1::JobSpec& spec, SpecProblems& check) {
  if (!spec.run().deterministic()) return;
  for (int i = 0; i < spec.reward().rewards_size(); ++i) {
    const auto& args = spec.reward().rewards(i).args().fields();
    const auto reload = args.find("reload");
    check.Require(reload == args.end() || reload->second.string_value() != "auto",
                  absl::StrCat("reward.rewards.", i, ".args.reload"),
                  "is auto, but run.deterministic needs rewards that never change; leave it out");
  }
  const job::v1::Queue& queue = spec.queue();
  const std::string& straggler = queue.straggler().policy();
  check.Require(
      queue.max_staleness() == 0, "queue.max_staleness", "is ", queue.max_staleness(),
      ", but run.deterministic needs 0: each step must train on what its own weights sampled");
  check.Require(
      queue.admission().oversample() == 0, "queue.admission.oversample", "is ",
      queue.admission().oversample(),
      ", but run.deterministic needs 0: otherwise the job trains on the answers that end first");
  check.Require(straggler == "wait" || straggler == "mask", "queue.straggler.policy", "is ",
                straggler, ", but run.deterministic needs wait or mask: ", straggler,
                " depends on the clock");
  check.Require(!spec.algorithm().advantage().duration_aware(),
                "algorithm.advantage.duration_aware",
                "is true, but run.deterministic needs false: no two runs take the same time");
  check.Require(
      spec.data().order().sampler() == "uniform" ||
          spec.algorithm().advantage().group_filter() != "signal",
      "data.order.sampler", "is ", spec.data().order().sampler(),
      ", but run.deterministic needs uniform, or no algorithm.advantage.group_filter: the "
      "sampler goes by groups that are rejected, and these come in any order");
  check.Require(
      spec.weights().kv_cache() == "recompute", "weights.kv_cache", "is ",
      spec.weights().kv_cache(),
      ", but run.deterministic needs recompute: a token that attends to keys and values of two "
      "versions has a log-prob that no single version can reproduce");
}

void CheckModel(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Model& model = spec.model();
  check.Require(
      !model.path().empty() || model.has_init(), "model",
      "wants one of path (a Hugging Face directory) and init (random weights from a config)");
  check.Require(model.path().empty() || !model.has_init(), "model.init",
                "contradicts model.path; give one of them (--set model.init=none)");
  check.Require(spec.kind() != "sft" || !model.has_reference(), "model.reference", "is ",
                model.reference(), ", but kind sft has no use for it; leave it out");
  check.Require(spec.kind() == "rl" || !model.has_teacher(), "model.teacher", "is given, but kind ",
                spec.kind(), " trains on the answers of its rows, not on its own; leave it out");
  check.Require(spec.kind() != "rl" || spec.rollout().max_response() < model.max_context(),
                "rollout.max_response", "is ", spec.rollout().max_response(),
                ", but it must be below model.max_context = ", model.max_context());
}

void CheckDpo(const job::v1::JobSpec& spec, SpecProblems& check) {
  if (spec.kind() != "dpo") {
    CheckUnused(spec, "trainer.dpo", spec.trainer().dpo(), spec.trainer().has_dpo(), check);
    return;
  }
  check.Require(spec.model().has_reference(), "model.reference",
                "is none, but dpo compares the policy with its reference; set it to initial");
  check.Require(spec.trainer().dpo().beta() > 0, "trainer.dpo.beta", "is ",
                spec.trainer().dpo().beta(), ", wants more than 0");
  check.Require(spec.trainer().dpo().label_smoothing() < 0.5, "trainer.dpo.label_smoothing", "is ",
                spec.trainer().dpo().label_smoothing(),
                ", wants less than 0.5: at 0.5 the labels say nothing");
}

void CheckCritic(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Critic& critic = spec.trainer().critic();
  if (spec.kind() != "rl") {
    CheckUnused(spec, "trainer.critic", critic, spec.trainer().has_critic(), check);
    return;
  }
  const std::string& kind = spec.algorithm().advantage().kind();
  const Row<AdvantageRule>* advantage = FindRow(AdvantageRows(), kind);
  if (advantage == nullptr) return;  // CheckAlgorithm() reports it.
  if (!NeedsCritic(advantage->value)) {
    check.Require(!spec.trainer().has_critic() || IsPlain(critic), "trainer.critic",
                  "is not used by algorithm.advantage.kind: ", kind,
                  ", which needs no critic; leave the block out, or use kind: gae");
    // In a stored job 0 means that an older build has checked it, so CheckAlgorithm() takes it.
    check.Require(spec.algorithm().advantage().lam() != 0, "algorithm.advantage.lam",
                  "is 0, but has an effect only with advantage.kind: gae; leave it out");
    return;
  }
  check.Require(!critic.has_clip() || critic.clip() > 0, "trainer.critic.clip",
                "is 0, so that no value could move; wants more than 0, or none");
  check.Require(!spec.limits().has_max_steps() ||
                    critic.warmup() < static_cast<uint64_t>(spec.limits().max_steps()),
                "trainer.critic.warmup", "is ", critic.warmup(),
                ", but the job ends at limits.max_steps = ", spec.limits().max_steps(),
                ": the policy would never be trained");
}

// The controller of advantage.kl must not make it negative, and a step should change it by little.
void CheckKlHorizon(const job::v1::JobSpec& spec, SpecProblems& check) {
  const job::v1::Advantage& advantage = spec.algorithm().advantage();
  const uint64_t answers = uint64_t{spec.queue().groups_per_step()} * spec.rollout().group().size();
  check.Require(!advantage.has_kl_target() || advantage.kl_horizon() >= answers,
                "algorithm.advantage.kl_horizon", "is ", advantage.kl_horizon(),
                ", but the minimum is queue.groups_per_step * rollout.group.size = ", answers);
}

void CheckLora(const job::v1::JobSpec& spec, SpecProblems& check) {
  if (!spec.trainer().has_lora()) return;
  const job::v1::Lora& lora = spec.trainer().lora();
  check.Require(lora.alpha() > 0, "trainer.lora.alpha", "is ", lora.alpha(),
                ", wants more than 0: nothing would be learned");
  for (const std::string& target : lora.targets()) {
    check.Require(absl::c_linear_search(kLayerMatrices, target), "trainer.lora.targets", "has \"",
                  target, "\", wants names of ", absl::StrJoin(kLayerMatrices, ", "));
  }
  // Both work on the gradients or the weights of the whole model.
  check.Require(spec.kind() != "rl" || spec.algorithm().advantage().kind() != "min_variance",
                "trainer.lora", "excludes algorithm.advantage.kind: min_variance");
  check.Require(spec.kind() != "rl" || spec.algorithm().loss().prox() != "ewma", "trainer.lora",
                "excludes algorithm.loss.prox: ewma");
  check.Require(spec.algorithm().loss().router_balance() == 0, "trainer.lora",
                "excludes algorithm.loss.router_balance: it never changes the routers");
}

// Gradients that are shared out are added up before one rank has a whole one, and no rank ever has
// all parameters.
void CheckShard(const job::v1::JobSpec& spec, SpecProblems& check) {
  const std::string& shard = spec.trainer().shard();
  if (shard != "gradients" && shard != "parameters") return;
  check.Require(!spec.trainer().has_lora(), "trainer.shard", "is ", shard,
                ", but trainer.lora needs the whole gradient of each matrix; use none or "
                "optimizer");
  check.Require(spec.kind() != "rl" || spec.algorithm().advantage().kind() != "min_variance",
                "trainer.shard", "is ", shard,
                ", but algorithm.advantage.kind: min_variance needs the whole gradient of each "
                "answer; use none or optimizer");
  check.Require(
      spec.kind() != "rl" || shard != "parameters" || spec.algorithm().loss().prox() != "exact",
      "trainer.shard", "is ", shard,
      ", but algorithm.loss.prox: exact keeps whole versions of the weights on each rank; use "
      "gradients or less");
}

void CheckRanks(const job::v1::JobSpec& spec, SpecProblems& check) {
  const uint32_t ranks = spec.resources().trainer();
  const job::v1::Parallel& parallel = spec.trainer().parallel();
  check.Require(!parallel.has_data() || parallel.data() == ranks, "trainer.parallel.data", "is ",
                parallel.data(), ", but resources.trainer is ", ranks,
                "; give both the same number, or use auto");
  check.Require(ranks <= spec.queue().groups_per_step() || parallel.context() > 1,
                "resources.trainer", "is ", ranks,
                ", but the maximum is queue.groups_per_step = ", spec.queue().groups_per_step(),
                ": a group is trained by one rank, so the others would have nothing to do");
  if (parallel.context() <= 1) return;
  check.Require(parallel.context() == ranks, "trainer.parallel.context", "is ", parallel.context(),
                ", but resources.trainer is ", ranks, "; give both the same number, or use 1");
  check.Require(spec.trainer().batching().recompute_activations() != "none",
                "trainer.parallel.context", "is ", parallel.context(),
                ", but trainer.batching.recompute_activations is none, and long sequences are "
                "computed in parts, whose activations are computed again; use auto or layer");
  check.Require(spec.kind() != "rl" || spec.algorithm().advantage().kind() != "min_variance",
                "trainer.parallel.context", "is ", parallel.context(),
                ", but algorithm.advantage.kind: min_variance needs the gradient of each answer "
                "on one rank; use 1");
}

}  // namespace

bool LearnsFromNoReward(const job::v1::JobSpec& spec) {
  const Row<AdvantageRule>* row = FindRow(AdvantageRows(), spec.algorithm().advantage().kind());
  return row != nullptr && IgnoresRewards(row->value);
}

absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifierOf(const job::v1::RewardEntry& entry) {
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json args, VerifierArgs(entry));
  return MakeVerifier(entry.verifier(), args);
}

void CheckQuota(const job::v1::JobSpec& spec, uint32_t token_bytes, SpecProblems* problems) {
  // The queue keeps groups until the step that trains them is checkpointed. In the worst case these
  // are every_steps + max_staleness + 1 steps of the longest sequences.
  const job::v1::Queue& queue = spec.queue();
  const uint64_t steps = uint64_t{spec.checkpoint().every_steps()} + queue.max_staleness() + 1;
  const uint64_t tokens =
      uint64_t{spec.data().order().max_prompt()} + spec.rollout().max_response();
  const double worst = static_cast<double>(steps) * queue.groups_per_step() *
                       spec.rollout().group().size() * tokens * token_bytes;
  if (worst > static_cast<double>(queue.keep().quota())) {
    problems->Add(11, "queue.keep.quota", " ", SizeText(queue.keep().quota()), " < worst case ",
                  WholeMiB(worst), " = (", spec.checkpoint().every_steps(),
                  " steps to a checkpoint + max_staleness ", queue.max_staleness(), " + 1) x ",
                  queue.groups_per_step(), " x ", spec.rollout().group().size(), " x ", tokens,
                  " tokens x ", token_bytes,
                  " B. Raise the quota, or lower checkpoint.every_steps, data.order.max_prompt or "
                  "rollout.max_response");
  }
}

void CheckRules(const job::v1::JobSpec& spec, SpecProblems* problems) {
  SpecProblems& check = *problems;
  check.Require(
      IsJobName(spec.name()), "name", "is \"", spec.name(),
      "\", wants 1 to 63 lower-case letters, digits and dashes, and no dash at the start");
  CheckModel(spec, check);
  CheckSources(spec.data(), check);
  CheckSampler(spec, check);
  CheckOptimizer(spec.trainer().optimizer(), check);
  CheckSchedule(spec, check);
  CheckEval(spec, check);
  check.Require(spec.trainer().batching().minibatches() <= spec.queue().groups_per_step(),
                "trainer.batching.minibatches", "is ", spec.trainer().batching().minibatches(),
                ", but the maximum is queue.groups_per_step = ", spec.queue().groups_per_step());
  CheckDpo(spec, check);
  CheckCritic(spec, check);
  CheckLora(spec, check);
  CheckCanary(spec, check);
  CheckInflight(spec, check);
  CheckBroadcast(spec, check);
  CheckShard(spec, check);
  CheckRanks(spec, check);
  // Training on the answers of rows uses none of these blocks.
  if (spec.kind() != "rl") {
    CheckUnused(spec, "rollout", spec.rollout(), spec.has_rollout(), check);
    CheckUnused(spec, "reward", spec.reward(), spec.has_reward(), check);
    CheckAlgorithmUnused(spec, check);
    const job::v1::QueueAdmission& admission = spec.queue().admission();
    CheckNoDriftBound(spec, admission.has_min_ess(), "min_ess", check);
    CheckNoDriftBound(spec, admission.has_max_kl(), "max_kl", check);
    check.Require(!spec.weights().has_dir(), "weights.dir", "is not used by kind: ", spec.kind(),
                  ", which has no rollouts; leave it out");
    check.Require(!spec.weights().ucx(), "weights.ucx", "is not used by kind: ", spec.kind(),
                  ", which has no rollouts; use false");
    return;
  }

  CheckNames(spec.reward().rewards(), "reward.rewards", check);
  CheckRewards(spec, check);
  CheckTokenRewards(spec, check);
  if (spec.reward().has_sandbox()) CheckSandbox(spec.reward().sandbox(), check);
  check.Require(spec.rollout().sampling().temperature() > 0, "rollout.sampling.temperature",
                "is 0: greedy answers have no probability to train on; wants more than 0");
  check.Require(spec.rollout().group().min() <= spec.rollout().group().size(), "rollout.group.min",
                "is ", spec.rollout().group().min(),
                ", but the maximum is rollout.group.size = ", spec.rollout().group().size());
  CheckWaves(spec, check);
  for (const auto& [name, range] : {std::pair{"resources.rollout", &spec.resources().rollout()},
                                    {"resources.reward", &spec.resources().reward()}}) {
    check.Require(range->min() >= 1 && range->min() <= range->max(), name,
                  "wants 1 <= min <= max, has ", range->min(), " and ", range->max());
  }

  CheckAlgorithm(spec, check);
  CheckKlHorizon(spec, check);
  CheckQueue(spec, check);
  CheckDeterministic(spec, check);
  check.Require(!spec.weights().has_dir() || spec.weights().dir() != spec.checkpoint().dir(),
                "weights.dir", "is checkpoint.dir, ", spec.checkpoint().dir(),
                ", where files of both would mix; use another folder");
}

}  // namespace sluice::config
