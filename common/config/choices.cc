#include "common/config/choices.h"

#include <google/protobuf/descriptor.h>

#include <utility>

#include "common/algorithms/presets.h"
#include "common/algorithms/registry.h"
#include "common/config/fields.h"
#include "common/config/refused.h"
#include "common/data/generator.h"
#include "common/optim/schedule.h"
#include "common/verifiers/verifier.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using Words = std::vector<std::string>;
using Choices = std::vector<Choice>;

template <typename Rows>
Choices FromRows(const Rows& rows) {
  Choices choices;
  for (const auto& row : rows) choices.push_back({std::string(row.name), std::string(row.doc)});
  return choices;
}

// The KL estimators that can be used as a loss.
Choices KlKinds() {
  Choices kinds{{"auto", "k2+ if max_staleness is 0, else k3_is"}};
  for (const Row<KlEntry>& row : KlRows()) {
    if (row.value.as_loss) kinds.push_back({std::string(row.name), std::string(row.doc)});
  }
  return kinds;
}

Choices Optimizers() {
  Choices choices;
  for (const absl::string_view name : OptimizerNames()) choices.push_back({std::string(name), ""});
  return choices;
}

// Sandboxes of programs (common/sandbox).
Choices Tiers() {
  return {{"auto", "the strongest that the reward daemon has"},
          {"T1", "namespaces, a seccomp filter and a cgroup"},
          {"T1b", "limits per process; namespaces, or a user of its own with Landlock"},
          {"T2", "the sandboxes of another machine (sluice-reward --code-server)"}};
}

// The values whose words come from a registry.
struct Registry {
  absl::string_view path;
  Choices (*choices)();
};
const Registry kRegistries[] = {
    {"data.train.generator.kind", [] { return FromRows(Generators()); }},
    {"eval.datasets.generator.kind", [] { return FromRows(Generators()); }},
    {"reward.rewards.verifier", [] { return FromRows(Verifiers()); }},
    {"reward.sandbox.tier", Tiers},
    {"algorithm.preset", [] { return FromRows(PresetRows()); }},
    {"algorithm.advantage.kind", [] { return FromRows(AdvantageRows()); }},
    {"algorithm.advantage.truncated", [] { return FromRows(TruncationRows()); }},
    {"algorithm.loss.kind", [] { return FromRows(LossRows()); }},
    {"algorithm.loss.prox", [] { return FromRows(ProxRows()); }},
    {"algorithm.loss.aggregation", [] { return FromRows(AggregationRows()); }},
    {"algorithm.loss.tis_level", [] { return FromRows(WeightRows()); }},
    {"algorithm.loss.tis_outside", [] { return FromRows(OutsideRows()); }},
    {"algorithm.loss.ess_lr", [] { return FromRows(EssRows()); }},
    {"algorithm.loss.kl_kind", KlKinds},
    {"algorithm.distill.kind", [] { return FromRows(DistillRows()); }},
    {"trainer.optimizer.name", Optimizers},
    {"trainer.optimizer.schedule", [] { return FromRows(ScheduleRows()); }},
};

}  // namespace

Choices DocumentedChoicesOf(const google::protobuf::FieldDescriptor& field,
                            absl::string_view rule_path) {
  for (const Registry& registry : kRegistries) {
    if (registry.path == rule_path) return registry.choices();
  }
  Choices choices;
  for (const std::string& word : RuleOf(field).choices()) choices.push_back({word, ""});
  return choices;
}

Words ChoicesOf(const google::protobuf::FieldDescriptor& field, absl::string_view rule_path) {
  Words words;
  for (Choice& choice : DocumentedChoicesOf(field, rule_path))
    words.push_back(std::move(choice.word));
  return words;
}

Words BuiltChoicesOf(const google::protobuf::FieldDescriptor& field, absl::string_view rule_path) {
  Words built;
  if (RefusalOf(rule_path, "") != nullptr) return built;
  for (const std::string& word : ChoicesOf(field, rule_path)) {
    if (RefusalOf(rule_path, word) == nullptr) built.push_back(word);
  }
  return built;
}

}  // namespace sluice::config
