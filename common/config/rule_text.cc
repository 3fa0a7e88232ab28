#include "common/config/rule_text.h"

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/config/fields.h"
#include "common/config/refused.h"
#include "common/config/scalar.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::config {

using google::protobuf::FieldDescriptor;
using sluice::rpc::v1::FieldRule;

std::vector<std::string> RuleNotes(const FieldDescriptor& field, const std::string& choices) {
  const FieldRule& rule = RuleOf(field);
  std::vector<std::string> notes;
  if (rule.required()) notes.push_back("required");
  if (!rule.unit().empty() && rule.unit() != "s" && rule.unit() != "bytes")
    notes.push_back(rule.unit());
  const auto bound = [&](double value) {
    if (rule.unit() == "bytes") return SizeText(static_cast<uint64_t>(value));
    return rule.unit() == "s" ? DurationText(absl::Seconds(value)) : NumberText(value);
  };
  if (rule.has_min() && rule.has_max())
    notes.push_back(absl::StrCat(bound(rule.min()), " to ", bound(rule.max())));
  else if (rule.has_min() && rule.unit() == "s" && rule.min() == 0) notes.push_back("more than 0s");
  else if (rule.has_min()) notes.push_back(absl::StrCat("from ", bound(rule.min())));
  if (!choices.empty()) notes.push_back(choices);
  if (rule.live()) notes.push_back("`sluice job set` changes it");
  return notes;
}

std::string DocOf(const FieldDescriptor& field, const std::string& rule_path) {
  std::string text;
  if (const Refusal* refused = RefusalOf(rule_path, "")) {
    const std::string but = refused->but.empty() ? "" : absl::StrCat(", but for ", refused->but);
    text = absl::StrCat("(", kNotBuilt, but, ") ");
  }
  return text + RuleOf(field).doc();
}

}  // namespace sluice::config
