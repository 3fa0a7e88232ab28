#include "common/verifiers/ifeval.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/args.h"
#include "common/verifiers/ifeval/checks.h"

namespace sluice {
namespace {

constexpr size_t kMaxInstructions = 32;
// Bytes that the checks of an answer may read. A byte takes a few nanoseconds.
constexpr uint64_t kMaxBytesRead = 4'000'000;

struct Instruction {
  std::string id;
  ifeval::Check check;
};

absl::StatusOr<std::vector<Instruction>> InstructionsOf(const nlohmann::json& row) {
  const auto ids = row.find("instruction_id_list"), kwargs = row.find("kwargs");
  if (ids == row.end() || !ids->is_array() || ids->empty() || ids->size() > kMaxInstructions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "field `instruction_id_list` must be a list of 1 to ", kMaxInstructions, " names"));
  }
  if (kwargs == row.end() || !kwargs->is_array() || kwargs->size() != ids->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("field `kwargs` must be a list of ", ids->size(),
                     " objects, one for each name in `instruction_id_list`"));
  }

  std::vector<Instruction> instructions;
  for (size_t i = 0; i < ids->size(); ++i) {
    const nlohmann::json& id = (*ids)[i];
    nlohmann::json args = (*kwargs)[i].is_null() ? nlohmann::json::object() : (*kwargs)[i];
    if (!id.is_string() || !args.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "element ", i, " of field `", id.is_string() ? "kwargs" : "instruction_id_list", "` is ",
          id.is_string() ? args.type_name() : id.type_name(),
          ", wanted: ", id.is_string() ? "an object" : "a text"));
    }
    absl::StatusOr<ifeval::Check> check = ifeval::MakeCheck(id.get<std::string>(), args);
    if (!check.ok()) return Annotate(check.status(), "field `instruction_id_list`");
    instructions.push_back({.id = id.get<std::string>(), .check = *std::move(check)});
  }
  return instructions;
}

// The forms of an answer of which one must follow an instruction, each once.
std::vector<std::string> FormsOf(absl::string_view answer, bool loose) {
  std::vector<std::string> forms = {std::string(answer)};
  if (!loose) return forms;
  const auto trimmed = [](absl::string_view text) {
    return std::string(absl::StripAsciiWhitespace(text));
  };
  const size_t first = answer.find('\n'), last = answer.rfind('\n');
  const bool lines = first != absl::string_view::npos;
  forms.push_back(lines ? trimmed(answer.substr(first + 1)) : "");
  forms.push_back(lines ? trimmed(answer.substr(0, last)) : "");
  forms.push_back(lines && first < last ? trimmed(answer.substr(first + 1, last - first - 1)) : "");
  for (size_t i = 0; i < 4; ++i) forms.push_back(absl::StrReplaceAll(forms[i], {{"*", ""}}));
  std::sort(forms.begin(), forms.end());
  forms.erase(std::unique(forms.begin(), forms.end()), forms.end());
  return forms;
}

class Ifeval : public Verifier {
 public:
  Ifeval(bool loose, bool fraction) : loose_(loose), fraction_(fraction) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Instruction> instructions, InstructionsOf(row));
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    const std::vector<std::string> forms = FormsOf(Utf8Lossy(text), loose_);

    uint64_t steps = 0;
    for (const Instruction& instruction : instructions) {
      for (const std::string& form : forms) steps += instruction.check.passes * form.size();
    }
    if (steps > kMaxBytesRead) return Verdict{.reason = "too_complex"};

    size_t followed = 0;
    std::string missed;
    for (const Instruction& instruction : instructions) {
      if (IsFollowed(instruction, forms)) ++followed;
      else if (missed.empty()) missed = absl::StrCat("missed:", instruction.id);
    }
    if (missed.empty()) return Verdict{.score = 1, .reason = "right"};
    const double share = static_cast<double>(followed) / static_cast<double>(instructions.size());
    return Verdict{.score = fraction_ ? share : 0, .reason = std::move(missed)};
  }

  absl::Status CheckRow(const nlohmann::json& row) const override {
    return InstructionsOf(row).status();
  }

 private:
  static bool IsFollowed(const Instruction& instruction, const std::vector<std::string>& forms) {
    for (const std::string& form : forms) {
      if (!absl::StripAsciiWhitespace(form).empty() && instruction.check.follows(form)) return true;
    }
    return false;
  }

  const bool loose_, fraction_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeIfeval(const nlohmann::json& args) {
  ArgReader reader("ifeval", args);
  const std::string mode = reader.String("mode", "strict");
  const std::string score = reader.String("score", "all");
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  if (mode != "strict" && mode != "loose") {
    return absl::InvalidArgumentError(
        absl::StrCat("ifeval: args.mode is \"", mode, "\", wanted: strict or loose"));
  }
  if (score != "all" && score != "fraction") {
    return absl::InvalidArgumentError(
        absl::StrCat("ifeval: args.score is \"", score, "\", wanted: all or fraction"));
  }
  return std::make_unique<Ifeval>(mode == "loose", score == "fraction");
}

}  // namespace sluice
