// Checks single values of a spec, from any client: missing (0009), out of bounds (0007), not one of
// the allowed words (0008).

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>

#include <cmath>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/choices.h"
#include "common/config/fields.h"
#include "common/config/job_file.h"
#include "common/config/leaves.h"
#include "common/config/refused.h"
#include "common/config/rules.h"
#include "common/config/scalar.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;
using sluice::rpc::v1::FieldRule;

std::string BoundText(double bound, const FieldRule& rule) {
  if (rule.unit() == "bytes") return SizeText(static_cast<uint64_t>(bound));
  if (rule.unit() == "s") return DurationText(absl::Seconds(bound));
  return NumberText(bound);
}

void CheckBounds(const Leaf& leaf, int index, const std::string& path, SpecProblems* problems) {
  const FieldRule& rule = RuleOf(*leaf.field);
  const std::optional<double> value = NumberOf(leaf, index);
  if (!value.has_value()) return;

  const std::string is = absl::StrCat(" is ", ScalarText(*leaf.message, *leaf.field, index));
  const std::string or_word =
      UnsetWord(*leaf.field).empty() ? "" : absl::StrCat(" or ", UnsetWord(*leaf.field));
  if (!std::isfinite(*value)) {
    problems->Add(7, path, is, ", wants a finite number", or_word);
  } else if (IsDuration(*leaf.field) && *value <= 0) {
    problems->Add(7, path, is, ", wants more than 0s", or_word);
  } else if (rule.has_min() && *value < rule.min()) {
    problems->Add(7, path, is, ", but the minimum is ", BoundText(rule.min(), rule),
                  or_word.empty() ? "" : absl::StrCat(",", or_word));
  } else if (rule.has_max() && *value > rule.max()) {
    problems->Add(7, path, is, ", but the maximum is ", BoundText(rule.max(), rule),
                  or_word.empty() ? "" : absl::StrCat(",", or_word));
  }
}

void CheckWord(const Leaf& leaf, const std::string& value, SpecProblems* problems) {
  const std::vector<std::string> choices = BuiltChoicesOf(*leaf.field, leaf.rule_path);
  if (choices.empty() || RuleOf(*leaf.field).path()) return;
  // A word that this build refuses is reported by CheckRefused(), with a better text.
  if (absl::c_linear_search(choices, value) || RefusalOf(leaf.rule_path, value) != nullptr) return;

  const std::string unset = UnsetWord(*leaf.field);
  const std::string nearest = NearestWord(value, choices);
  problems->Add(8, leaf.path, " is \"", value, "\", wants ", absl::StrJoin(choices, ", "),
                unset.empty() ? "" : absl::StrCat(" or ", unset),
                nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest, "\"?"));
}

void CheckLeaf(const Leaf& leaf, SpecProblems* problems) {
  const FieldDescriptor& field = *leaf.field;
  const Reflection& reflection = *leaf.message->GetReflection();
  const bool given = IsSet(leaf);
  // A required value must be given; a list must not be empty.
  if (RuleOf(field).required() && !given) {
    problems->Add(9, leaf.path, " is missing: ", RuleOf(field).doc());
    return;
  }

  if (!IsLeaf(field) || field.is_map()) return;

  if (field.is_repeated()) {
    for (int i = 0; i < reflection.FieldSize(*leaf.message, &field); ++i)
      CheckBounds(leaf, i, JoinPath(leaf.path, absl::StrCat(i)), problems);
    return;
  }
  // An unset value means `auto` or `none`, or is free-form and empty. Only a duration that has no
  // such word is checked although it is unset: it counts as 0s, which CheckBounds() reports.
  if (!given && field.has_presence() && !IsDuration(field)) return;
  if (!given && !UnsetWord(field).empty()) return;
  CheckBounds(leaf, 0, leaf.path, problems);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING)
    CheckWord(leaf, reflection.GetString(*leaf.message, &field), problems);
}

// Whether this is the path of a data source whose generator takes its place.
bool IsMadePath(const Leaf& leaf) {
  if (leaf.rule_path != "data.train.path" && leaf.rule_path != "eval.datasets.path") return false;
  return static_cast<const job::v1::DataSource*>(leaf.message)->has_generator();
}

}  // namespace

void CheckMessage(const google::protobuf::Message& message, SpecProblems* problems) {
  VisitLeaves(message, /*unset_blocks=*/true, [&](const Leaf& leaf) { CheckLeaf(leaf, problems); });
}

void CheckValues(const job::v1::JobSpec& spec, SpecProblems* problems) {
  const bool sampled = spec.kind() == "rl";
  const bool unrewarded = LearnsFromNoReward(spec);
  VisitLeaves(spec, /*unset_blocks=*/true, [&](const Leaf& leaf) {
    const absl::string_view block = absl::string_view(leaf.path).substr(0, leaf.path.find('.'));
    const bool unused =
        !sampled && (block == "rollout" || block == "reward" || block == "algorithm");
    // Rewards are required, but for a job that does not learn from them.
    const bool optional = unrewarded && leaf.path == "reward.rewards" && !IsSet(leaf);
    if (!unused && !optional && !IsMadePath(leaf)) CheckLeaf(leaf, problems);
  });
}

}  // namespace sluice::config
