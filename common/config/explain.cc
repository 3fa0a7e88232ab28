// Explains a key of the job file, for `sluice config explain`.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/algorithms/presets.h"
#include "common/base/status.h"
#include "common/config/algorithm_spec.h"
#include "common/config/choices.h"
#include "common/config/fields.h"
#include "common/config/job_file.h"
#include "common/config/leaves.h"
#include "common/config/refused.h"
#include "common/config/rule_text.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using sluice::rpc::v1::FieldRule;

// Follows a path through the blocks of the job file. Numbers of list elements are skipped.
// INVALID_ARGUMENT: there is no such key; the message names the nearest one.
absl::StatusOr<const FieldDescriptor*> FindKey(absl::string_view path, std::string* rule_path) {
  const google::protobuf::Descriptor* block = job::v1::JobSpec::descriptor();
  const FieldDescriptor* field = nullptr;
  for (const absl::string_view part : absl::StrSplit(path, '.')) {
    int64_t index;
    if (field != nullptr && field->is_repeated() && absl::SimpleAtoi(part, &index)) continue;
    const FieldDescriptor* next = nullptr;
    if (block != nullptr) next = block->FindFieldByName(std::string(part));
    if (next == nullptr) {
      std::vector<std::string> names;
      for (int i = 0; block != nullptr && i < block->field_count(); ++i)
        names.emplace_back(block->field(i)->name());
      const std::string nearest = NearestWord(part, names);
      return absl::InvalidArgumentError(
          absl::StrCat("the job file has no key ", path, ": ",
                       rule_path->empty() ? "its blocks are " : absl::StrCat(*rule_path, " has "),
                       names.empty() ? "no keys of its own" : absl::StrJoin(names, ", "),
                       nearest.empty() ? "" : absl::StrCat(". Did you mean ", nearest, "?")));
    }
    field = next;
    *rule_path = config::JoinPath(*rule_path, field->name());
    block = config::IsLeaf(*field) ? nullptr : field->message_type();
  }
  return field;
}

// The presets under which a key of `algorithm` has another value than its default.
std::string PresetValues(absl::string_view rule_path) {
  std::string out;
  for (const Row<AlgorithmSpec>& preset : PresetRows()) {
    job::v1::JobSpec spec;
    config::FillDefaults(&spec);
    ApplyPreset(preset.value, spec.mutable_algorithm());
    config::VisitLeaves(spec, true, [&](const config::Leaf& leaf) {
      if (leaf.rule_path != rule_path) return;
      const std::string text = config::LeafText(*leaf.message, *leaf.field);
      std::unique_ptr<Message> plain(leaf.message->New());
      config::FillDefaults(plain.get());
      if (text != config::LeafText(*plain, *leaf.field))
        absl::StrAppend(&out, "  with preset ", preset.name, ": ", text, "\n");
    });
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> ExplainKey(absl::string_view path) {
  std::string rule_path;
  SLUICE_ASSIGN_OR_RETURN(const FieldDescriptor* field, FindKey(path, &rule_path));
  const FieldRule& rule = config::RuleOf(*field);
  std::string out = absl::StrCat(rule_path, "\n");
  if (!rule.doc().empty()) absl::StrAppend(&out, "  ", config::DocOf(*field, rule_path), "\n");
  if (!config::IsLeaf(*field)) {
    if (field->is_repeated())
      absl::StrAppend(&out, "  A list; each of its elements has the keys\n");
    const google::protobuf::Descriptor& block = *field->message_type();
    for (int i = 0; i < block.field_count(); ++i) {
      const FieldDescriptor& key = *block.field(i);
      const std::string doc = config::DocOf(key, config::JoinPath(rule_path, key.name()));
      absl::StrAppendFormat(&out, "  %-24s%s\n", key.name(), doc);
    }
    return out;
  }

  const std::string value = rule.required() ? "none, it must be given" : rule.default_();
  absl::StrAppend(&out, "  default: ", value.empty() ? "\"\"" : value, "\n");
  for (const std::string& note : config::RuleNotes(*field, ""))
    if (note != "required") absl::StrAppend(&out, "  ", note, "\n");
  if (absl::StartsWith(rule_path, "algorithm.")) out += PresetValues(rule_path);
  std::vector<config::Choice> choices = config::DocumentedChoicesOf(*field, rule_path);
  const std::string unset = config::UnsetWord(*field);
  if (!choices.empty() && !unset.empty()) choices.insert(choices.begin(), {unset, "not set"});
  if (!choices.empty()) absl::StrAppend(&out, "  values:\n");
  for (const config::Choice& choice : choices) {
    const bool refused = config::RefusalOf(rule_path, choice.word) != nullptr;
    absl::StrAppendFormat(&out, "    %-22s%s\n", choice.word,
                          refused ? config::kNotBuilt : choice.doc);
  }
  return out;
}

}  // namespace sluice
