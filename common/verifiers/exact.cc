#include "common/verifiers/exact.h"

#include "absl/strings/ascii.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"

namespace sluice {
namespace {

class Exact : public Verifier {
 public:
  Exact(bool trim, bool ignore_case) : trim_(trim), ignore_case_(ignore_case) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> golds, GoldsOf(row));
    for (const std::string& gold : golds) {
      if (Normalize(text) == Normalize(gold)) return Verdict{.score = 1, .reason = "right"};
    }
    return Verdict{.reason = "wrong"};
  }
  absl::Status CheckRow(const nlohmann::json& row) const override { return GoldsOf(row).status(); }

 private:
  static absl::StatusOr<std::vector<std::string>> GoldsOf(const nlohmann::json& row) {
    std::vector<std::string> golds;
    const auto it = row.find("answer");
    // The field is a single gold, or a list of golds of which one must match.
    if (it == row.end() || !it->is_array()) {
      SLUICE_ASSIGN_OR_RETURN(golds.emplace_back(), GoldOf(row));
      return golds;
    }
    if (it->empty())
      return absl::InvalidArgumentError(
          "field `answer` is an empty list, wanted: at least one text or number");
    for (const nlohmann::json& gold : *it) {
      SLUICE_ASSIGN_OR_RETURN(golds.emplace_back(), GoldText(gold));
    }
    return golds;
  }

  std::string Normalize(absl::string_view text) const {
    if (trim_) text = absl::StripAsciiWhitespace(text);
    return ignore_case_ ? absl::AsciiStrToLower(text) : std::string(text);
  }
  const bool trim_, ignore_case_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeExact(const nlohmann::json& args) {
  ArgReader reader("exact", args);
  const bool trim = reader.Bool("trim", true);
  const bool ignore_case = reader.Bool("ignore_case", false);
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<Exact>(trim, ignore_case);
}

}  // namespace sluice
