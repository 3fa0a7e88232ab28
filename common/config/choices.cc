#include "common/config/choices.h"

#include <google/protobuf/descriptor.h>

#include "common/algorithms/presets.h"
#include "common/algorithms/registry.h"
#include "common/config/fields.h"
#include "common/config/refused.h"
#include "common/optim/schedule.h"
#include "common/verifiers/verifier.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using Words = std::vector<std::string>;

template <typename Rows>
Words NamesOf(const Rows& rows) {
  Words names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

// The KL estimators that can be used as a loss.
Words KlKinds() {
  Words kinds{"auto"};
  for (const Row<KlEntry>& row : KlRows()) {
    if (row.value.as_loss) kinds.emplace_back(row.name);
  }
  return kinds;
}

// The values whose words come from a registry.
struct Registry {
  absl::string_view path;
  Words (*words)();
};
const Registry kRegistries[] = {
    {"reward.rewards.verifier", [] { return NamesOf(Verifiers()); }},
    {"algorithm.preset", [] { return NamesOf(PresetRows()); }},
    {"algorithm.advantage.kind", [] { return NamesOf(AdvantageRows()); }},
    {"algorithm.advantage.truncated", [] { return NamesOf(TruncationRows()); }},
    {"algorithm.loss.kind", [] { return NamesOf(LossRows()); }},
    {"algorithm.loss.prox", [] { return NamesOf(ProxRows()); }},
    {"algorithm.loss.aggregation", [] { return NamesOf(AggregationRows()); }},
    {"algorithm.loss.tis_level", [] { return NamesOf(WeightRows()); }},
    {"algorithm.loss.kl_kind", KlKinds},
    {"trainer.optimizer.name",
     [] { return Words(OptimizerNames().begin(), OptimizerNames().end()); }},
    {"trainer.optimizer.schedule", [] { return NamesOf(ScheduleRows()); }},
};

}  // namespace

Words ChoicesOf(const google::protobuf::FieldDescriptor& field, absl::string_view rule_path) {
  for (const Registry& registry : kRegistries) {
    if (registry.path == rule_path) return registry.words();
  }
  return {RuleOf(field).choices().begin(), RuleOf(field).choices().end()};
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
