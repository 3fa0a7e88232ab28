#include "common/config/rules.h"

#include <google/protobuf/util/json_util.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/algorithms/presets.h"
#include "common/algorithms/validate.h"
#include "common/base/status.h"
#include "common/config/algorithm_spec.h"
#include "common/config/scalar.h"
#include "common/optim/schedule.h"
#include "common/verifiers/verifier.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr uint64_t kTokenBytes = 20;  // The queue's bytes of one token: id, log-prob, and its share of runs and index.

class Checker {
 public:
  Checker(const Binder& binder, Problems* problems) : binder_(binder), problems_(problems) {}

  template <typename... Parts>
  void Require(bool holds, absl::string_view path, const Parts&... parts) {
    if (!holds) problems_->Add(binder_.PlaceOf(path), 10, absl::StrCat(path, " ", parts...));
  }
  void Add(absl::string_view path, int number, const std::string& text) { problems_->Add(binder_.PlaceOf(path), number, text); }
  // Whether the file or a --set has anything at or below `path`.
  bool Given(const std::string& path) const {
    const auto at = binder_.origins().find(path);
    return at != binder_.origins().end() && at->second.place.line > 0;
  }

 private:
  const Binder& binder_;
  Problems* const problems_;
};

bool IsJobName(const std::string& name) {
  if (name.empty() || name.size() > 63 || name[0] == '-') return false;
  for (char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') return false;
  }
  return true;
}

void CheckMissing(const Message& message, const std::string& path, const Binder& binder, Problems* problems) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const std::string here = JoinPath(path, field.name());
    if (RuleOf(field).required() && binder.origins().count(here) == 0) {
      problems->Add(binder.PlaceOf(here), 9, absl::StrCat(here, " is missing: ", RuleOf(field).doc()));
    } else if (field.is_repeated() && !IsLeaf(field)) {
      for (int j = 0; j < reflection.FieldSize(message, &field); ++j) {
        CheckMissing(reflection.GetRepeatedMessage(message, &field, j), JoinPath(here, absl::StrCat(j)), binder, problems);
      }
    } else if (!IsLeaf(field) && reflection.HasField(message, &field)) {
      CheckMissing(reflection.GetMessage(message, &field), here, binder, problems);
    }
  }
}

// Names of a list's entries may come once.
template <typename Entries>
void CheckNames(const Entries& entries, const std::string& path, Checker& check) {
  std::set<std::string> seen;
  for (int i = 0; i < entries.size(); ++i) {
    const std::string here = absl::StrCat(path, ".", i, ".name");
    check.Require(entries[i].name().empty() || seen.insert(entries[i].name()).second, here, "\"", entries[i].name(), "\" is taken; names differ");
  }
  check.Require(!entries.empty() || !check.Given(path), path, "is empty, wants at least one entry");
}

void CheckAlgorithm(const job::v1::JobSpec& spec, Checker& check) {
  if (spec.algorithm().has_preset()) {
    std::vector<std::string> names;
    for (const Row<AlgorithmSpec>& row : PresetRows()) names.emplace_back(row.name);
    for (const AlgorithmProblem& problem : ValidatePreset(spec.algorithm().preset())) {
      const std::string nearest = NearestWord(spec.algorithm().preset(), names);
      check.Add("algorithm.preset", absl::StartsWith(problem.message, "not in this build") ? 13 : 8,
                absl::StrCat("algorithm.preset: ", problem.message, nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest, "\"?")));
    }
  }
  const AlgorithmContext context{.group_size = spec.rollout().group().size(),
                                 .minibatches = spec.trainer().batching().minibatches(),
                                 .max_response = spec.rollout().max_response(),
                                 .max_staleness = spec.queue().max_staleness(),
                                 .has_reference = spec.model().has_reference()};
  for (const AlgorithmProblem& problem : ValidateAlgorithm(AlgorithmSpecOf(spec), context)) {
    const int number = absl::StartsWith(problem.message, "not in this build") ? 13 : absl::StartsWith(problem.message, "unknown name") ? 8 : 10;
    check.Add("algorithm." + problem.field, number, absl::StrCat("algorithm.", problem.field, ": ", problem.message));
  }
}

// Verifiers that jobs may know from elsewhere, and that this build does not have.
constexpr absl::string_view kVerifiersNotBuilt[] = {"math", "multiple_choice", "regex", "json_schema", "format", "countdown", "ifeval", "code", "judge"};

void CheckRewards(const job::v1::Reward& reward, Checker& check) {
  std::vector<std::string> names;
  for (const VerifierRow& row : Verifiers()) names.emplace_back(row.name);
  for (int i = 0; i < reward.rewards_size(); ++i) {
    const job::v1::RewardEntry& entry = reward.rewards(i);
    const std::string path = absl::StrCat("reward.rewards.", i);
    if (!absl::c_linear_search(names, entry.verifier())) {
      const bool known = absl::c_linear_search(kVerifiersNotBuilt, entry.verifier());
      const std::string nearest = known ? "" : NearestWord(entry.verifier(), names);
      check.Add(path + ".verifier", known ? 13 : 8,
                absl::StrCat(path, ".verifier \"", entry.verifier(), known ? "\" is not in this build" : "\" is unknown", "; there are ",
                             absl::StrJoin(names, ", "), nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest, "\"?")));
      continue;
    }
    std::string args;
    SLUICE_CHECK(google::protobuf::util::MessageToJsonString(entry.args(), &args).ok());
    const auto verifier = MakeVerifier(entry.verifier(), nlohmann::json::parse(args));
    if (!verifier.ok()) check.Add(path + ".args", 10, absl::StrCat(path, ".args: ", verifier.status().message()));
  }
}

void CheckOptimizer(const job::v1::Optimizer& optimizer, Checker& check) {
  const std::string path = "trainer.optimizer.";
  if (optimizer.name() != "adamw") check.Add(path + "name", 8, absl::StrCat(path, "name is \"", optimizer.name(), "\", wants adamw"));
  if (FindSchedule(optimizer.schedule()) == nullptr) {
    check.Add(path + "schedule", 8, absl::StrCat(path, "schedule is \"", optimizer.schedule(), "\", wants ",
              absl::StrJoin(ScheduleRows(), " or ", [](std::string* out, const ScheduleRow& row) { absl::StrAppend(out, row.name); })));
  }
  check.Require(optimizer.betas_size() == 2 && optimizer.betas(0) < 1 && optimizer.betas(1) < 1, path + "betas",
                "wants two values, both from 0 to below 1");
}

// A schedule that falls to 0 must know the last step. Without it, the learning rate would be 0 from
// the end of the warm-up on.
void CheckSchedule(const job::v1::JobSpec& spec, Checker& check) {
  const std::string& name = spec.trainer().optimizer().schedule();
  const ScheduleRow* schedule = FindSchedule(name);
  if (schedule == nullptr || !schedule->needs_total() || spec.limits().max_steps() > 0) return;

  const std::string steps =
      spec.limits().has_max_steps() ? absl::StrCat(spec.limits().max_steps()) : "none";
  check.Add(
      "trainer.optimizer.schedule", 10,
      absl::StrCat("trainer.optimizer.schedule is ", name,
                   ", whose learning rate falls to 0 at limits.max_steps, and that is ", steps,
                   ". Set limits.max_steps to the number of steps, or schedule: constant"));
}

void CheckQueue(const job::v1::JobSpec& spec, Checker& check) {
  const job::v1::Queue& queue = spec.queue();
  check.Require(spec.weights().every_steps() <= queue.max_staleness() + 1, "weights.every_steps", "is ", spec.weights().every_steps(),
                ", most is queue.max_staleness + 1 = ", queue.max_staleness() + 1, ": older tokens could never be trained on");
  check.Require(!queue.admission().has_staleness() || queue.admission().staleness() <= queue.max_staleness(), "queue.admission.staleness",
                "is ", queue.admission().staleness(), ", most is queue.max_staleness = ", queue.max_staleness());
  check.Require(queue.straggler().policy() != "mask" || queue.admission().statistic() == "masked", "queue.straggler.policy",
                "mask needs queue.admission.statistic: masked");
  const uint64_t steps = spec.checkpoint().every_steps() + queue.max_staleness() + 1;
  const uint64_t tokens = spec.data().order().max_prompt() + spec.rollout().max_response();
  const double worst = static_cast<double>(steps) * queue.groups_per_step() * spec.rollout().group().size() * tokens * kTokenBytes;
  if (worst > static_cast<double>(queue.keep().quota())) {
    check.Add("queue.keep.quota", 11,
              absl::StrCat("queue.keep.quota ", SizeText(queue.keep().quota()), " < worst case ", SizeText(static_cast<uint64_t>(worst / 1048576) * 1048576 + 1048576),
                           " = (", spec.checkpoint().every_steps(), " steps to a checkpoint + eta ", queue.max_staleness(), " + 1) x ",
                           queue.groups_per_step(), " x ", spec.rollout().group().size(), " x ", tokens, " tokens x ", kTokenBytes,
                           " B. Raise the quota, or lower checkpoint.every_steps, data.order.max_prompt or rollout.max_response"));
  }
}

// The same job gives the same weights only where nothing depends on when something came.
void CheckDeterministic(const job::v1::JobSpec& spec, Checker& check) {
  if (!spec.run().deterministic()) return;
  const job::v1::Queue& queue = spec.queue();
  const std::string& straggler = queue.straggler().policy();
  check.Require(queue.max_staleness() == 0, "queue.max_staleness", "is ", queue.max_staleness(), ", run.deterministic wants 0: each step trains what its own weights sampled");
  check.Require(queue.admission().oversample() == 0, "queue.admission.oversample", "is ", queue.admission().oversample(),
                ", run.deterministic wants 0: the first to end would be the ones trained on");
  check.Require(straggler == "wait" || straggler == "mask", "queue.straggler.policy", "is ", straggler, ", run.deterministic wants wait or mask: ", straggler, " goes by the clock");
  check.Require(spec.weights().kv_cache() == "recompute" || !check.Given("weights.kv_cache"), "weights.kv_cache", "is ", spec.weights().kv_cache(),
                ", run.deterministic wants recompute: over keys and values of two versions no single one gives a token's log-prob");
}

void CheckModel(const job::v1::JobSpec& spec, Checker& check) {
  const job::v1::Model& model = spec.model();
  check.Require(!model.path().empty() || model.has_init(), "model",
                "wants one of path (a Hugging Face directory) and init (random weights from a config)");
  check.Require(model.path().empty() || !model.has_init(), "model.init", "contradicts model.path; give one of them (--set model.init=none)");
  check.Require(spec.kind() != "rl" || spec.rollout().max_response() < model.max_context(), "rollout.max_response", "is ",
                spec.rollout().max_response(), ", must be below model.max_context = ", model.max_context());
}

}  // namespace

void CheckRequired(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems) {
  if (spec.kind() == "rl") return CheckMissing(spec, "", binder, problems);
  job::v1::JobSpec supervised = spec;  // Without the blocks that it does not need.
  supervised.clear_reward();
  supervised.clear_rollout();
  CheckMissing(supervised, "", binder, problems);
}

void CheckRules(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems) {
  Checker check(binder, problems);
  check.Require(spec.name().empty() || IsJobName(spec.name()), "name", "is \"", spec.name(),
                "\", wants 1 to 63 lower-case letters, digits and dashes, a dash not first");
  CheckModel(spec, check);
  CheckNames(spec.data().train(), "data.train", check);
  CheckOptimizer(spec.trainer().optimizer(), check);
  CheckSchedule(spec, check);
  if (spec.kind() != "rl") {
    for (const char* block : {"rollout", "reward", "algorithm"}) {
      check.Require(!check.Given(block), block, "is not used by kind: ", spec.kind(), "; leave the block out");
    }
    return;
  }
  CheckNames(spec.reward().rewards(), "reward.rewards", check);
  CheckRewards(spec.reward(), check);
  check.Require(spec.rollout().sampling().temperature() > 0, "rollout.sampling.temperature",
                "is 0: greedy answers have no probability to train on; wants more than 0");
  check.Require(spec.rollout().group().min() <= spec.rollout().group().size(), "rollout.group.min", "is ", spec.rollout().group().min(),
                ", most is rollout.group.size = ", spec.rollout().group().size());
  check.Require(spec.trainer().batching().minibatches() <= spec.queue().groups_per_step(), "trainer.batching.minibatches", "is ",
                spec.trainer().batching().minibatches(), ", most is queue.groups_per_step = ", spec.queue().groups_per_step());
  for (const auto& [name, range] : {std::pair{"resources.rollout", &spec.resources().rollout()}, {"resources.reward", &spec.resources().reward()}}) {
    check.Require(range->min() >= 1 && range->min() <= range->max(), name, "wants 1 <= min <= max, has ", range->min(), " and ", range->max());
  }
  CheckAlgorithm(spec, check);
  CheckQueue(spec, check);
  CheckDeterministic(spec, check);
}

void CheckPaths(const job::v1::JobSpec& spec, const Binder& binder, Problems* problems) {
  const auto add = [&](absl::string_view path, const std::string& text) { problems->Add(binder.PlaceOf(path), 12, absl::StrCat(path, ": ", text)); };
  const auto check_model = [&](absl::string_view path, const std::string& dir) {
    std::error_code error;
    if (!std::filesystem::is_directory(dir, error)) add(path, absl::StrCat("no directory ", dir));
    else if (!std::filesystem::exists(dir + "/config.json", error)) add(path, absl::StrCat("no config.json in ", dir, "; want a Hugging Face model directory"));
  };
  if (!spec.model().path().empty()) check_model("model.path", spec.model().path());
  if (!spec.model().init().config().empty()) check_model("model.init.config", spec.model().init().config());
  const auto check_file = [&](absl::string_view path, const std::string& file) {
    std::error_code error;
    if (!file.empty() && !std::filesystem::is_regular_file(file, error)) add(path, absl::StrCat("no file ", file));
  };
  for (int i = 0; i < spec.data().train_size(); ++i) check_file(absl::StrCat("data.train.", i, ".path"), spec.data().train(i).path());
  if (spec.model().chat_template() != "model") check_file("model.chat_template", spec.model().chat_template());
}

}  // namespace sluice::config
