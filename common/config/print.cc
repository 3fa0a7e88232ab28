// Prints a JobSpec as a job file, with or without the documentation of the rules.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
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
using google::protobuf::Reflection;
using sluice::rpc::v1::FieldRule;

// "rl | sft | dpo (not in this build)"; "" if any word is allowed.
std::string ChoicesText(const FieldDescriptor& field, const std::string& rule_path) {
  std::vector<std::string> words = config::ChoicesOf(field, rule_path);
  if (words.empty() || config::RuleOf(field).path()) return "";
  for (std::string& word : words) {
    if (config::RefusalOf(rule_path, word) != nullptr)
      absl::StrAppend(&word, " (", config::kNotBuilt, ")");
  }
  const std::string unset = config::UnsetWord(field);
  if (!unset.empty()) words.insert(words.begin(), unset);
  return absl::StrJoin(words, " | ");
}

// The comment after a key: "Learning rate. (from 0)".
std::string RuleText(const FieldDescriptor& field, const std::string& rule_path) {
  const std::vector<std::string> notes = config::RuleNotes(field, ChoicesText(field, rule_path));
  const std::string doc = config::DocOf(field, rule_path);
  return notes.empty() ? doc : absl::StrCat(doc, " (", absl::StrJoin(notes, "; "), ")");
}

class Printer {
 public:
  explicit Printer(bool documented) : documented_(documented) {}

  // Prints all fields of `message`. In a list, the first of them follows a dash.
  void Print(const Message& message, const std::string& rule_path, int indent,
             bool in_list = false) {
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor& field = *message.GetDescriptor()->field(i);
      const bool dash = in_list && i == 0;
      const std::string key = absl::StrCat(std::string(dash ? indent - 2 : indent, ' '),
                                           dash ? "- " : "", field.name(), ":");
      PrintField(message, field, config::JoinPath(rule_path, field.name()), key, indent);
    }
  }
  std::string TakeText() { return std::move(out_); }

 private:
  void PrintField(const Message& message, const FieldDescriptor& field,
                  const std::string& rule_path, const std::string& key, int indent) {
    const Reflection& reflection = *message.GetReflection();
    if (config::IsLeaf(field)) {
      const std::string text = config::LeafText(message, field);
      // Nobody has given this path, and a job file cannot say so, as an empty path is refused.
      if (config::RuleOf(field).path() && text == "\"\"") return;
      return PrintLine(absl::StrCat(key, " ", text), field, rule_path);
    }
    if (field.is_repeated()) {
      const int size = reflection.FieldSize(message, &field);
      PrintLine(size == 0 ? key + " []" : key, field, rule_path);
      for (int i = 0; i < size; ++i)
        Print(reflection.GetRepeatedMessage(message, &field, i), rule_path, indent + 4, true);
    } else if (!reflection.HasField(message, &field)) {
      PrintLine(absl::StrCat(key, " none"), field, rule_path);
    } else {
      PrintLine(key, field, rule_path);
      Print(reflection.GetMessage(message, &field), rule_path, indent + 2);
    }
  }
  void PrintLine(const std::string& text, const FieldDescriptor& field,
                 const std::string& rule_path) {
    out_ += text;
    if (documented_ && !config::RuleOf(field).doc().empty()) {
      out_.append(std::max<int>(2, 40 - static_cast<int>(text.size())), ' ');
      absl::StrAppend(&out_, "# ", RuleText(field, rule_path));
    }
    out_ += '\n';
  }

  const bool documented_;
  std::string out_;
};

// Sets the fields that have an example to it, and gives each required list one element.
void FillExamples(Message* message) {
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message->GetDescriptor()->field(i);
    const FieldRule& rule = config::RuleOf(field);
    if (!rule.example().empty()) {
      reflection.SetString(message, &field, rule.example());
    } else if (field.is_repeated() && !config::IsLeaf(field) && rule.required()) {
      Message* element = reflection.AddMessage(message, &field);
      config::FillDefaults(element);
      FillExamples(element);
    } else if (!config::IsLeaf(field) && !field.is_repeated() &&
               reflection.HasField(*message, &field)) {
      FillExamples(reflection.MutableMessage(message, &field));
    }
  }
}

}  // namespace

std::string JobFileDefaults() {
  job::v1::JobSpec spec;
  config::FillDefaults(&spec);
  FillExamples(&spec);
  Printer printer(true);
  printer.Print(spec, "", 0);
  return printer.TakeText();
}

std::string JobFileText(const job::v1::JobSpec& spec) {
  Printer printer(false);
  printer.Print(spec, "", 0);
  return printer.TakeText();
}

}  // namespace sluice
