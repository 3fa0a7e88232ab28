#include "common/verifiers/math.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"
#include "common/verifiers/math/judge.h"

namespace sluice {
namespace {

constexpr int64_t kMaxDecimals = 100;

class Math : public Verifier {
 public:
  explicit Math(const math::JudgeOptions& options) : options_(options) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    SLUICE_ASSIGN_OR_RETURN(const std::string gold, GoldOf(row));
    math::JudgeOptions options = options_;
    SLUICE_RETURN_IF_ERROR(ReadDecimals(row, options.equal.decimals));
    math::Budget budget;
    const std::string problem = math::CheckGold(gold);
    if (!problem.empty()) return GoldError(problem);
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    const math::Outcome outcome = math::Judge(text, gold, options, budget);
    const double score = outcome == math::Outcome::kRight ? 1 : 0;
    return Verdict{.score = score, .reason = math::ReasonOf(outcome)};
  }

  absl::Status CheckRow(const nlohmann::json& row) const override {
    SLUICE_ASSIGN_OR_RETURN(const std::string gold, GoldOf(row));
    int unused = 0;
    SLUICE_RETURN_IF_ERROR(ReadDecimals(row, unused));
    const std::string problem = math::CheckGold(gold);
    return problem.empty() ? absl::OkStatus() : GoldError(problem);
  }

 private:
  static absl::Status GoldError(const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat("field `answer` ", problem));
  }

  // Sets `decimals` to the row's field of this name, if it has one.
  static absl::Status ReadDecimals(const nlohmann::json& row, int& decimals) {
    const auto it = row.find("decimals");
    if (it == row.end() || it->is_null()) return absl::OkStatus();
    if (!it->is_number_integer() || *it < 0 || *it > kMaxDecimals) {
      return absl::InvalidArgumentError(
          absl::StrCat("field `decimals` is not a whole number from 0 to ", kMaxDecimals));
    }
    decimals = it->get<int>();
    return absl::OkStatus();
  }

  const math::JudgeOptions options_;
};

absl::StatusOr<math::Extraction> ReadExtraction(const std::string& name) {
  if (name == "boxed") return math::Extraction::kBoxed;
  if (name == "tagged") return math::Extraction::kTagged;
  if (name == "auto") return math::Extraction::kAuto;
  return absl::InvalidArgumentError(absl::StrCat("math: args.extract is \"", name,
                                                 "\"; the known ones are: boxed, tagged, auto"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeMath(const nlohmann::json& args) {
  ArgReader reader("math", args);
  math::JudgeOptions options;
  const std::string extract = reader.String("extract", "auto");
  const std::string form = reader.String("form", "value");
  options.require_reduced = reader.Bool("require_reduced", false);
  options.equal.ordered = reader.Bool("ordered", false);
  options.equal.decimals = static_cast<int>(reader.Integer("decimals", -1, -1, kMaxDecimals));
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  SLUICE_ASSIGN_OR_RETURN(options.extraction, ReadExtraction(extract));
  if (form != "value" && form != "final") {
    return absl::InvalidArgumentError(
        absl::StrCat("math: args.form is \"", form, "\"; the known ones are: value, final"));
  }
  options.final_form = form == "final";
  return std::make_unique<Math>(options);
}

}  // namespace sluice
