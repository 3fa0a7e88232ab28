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
    const auto it = row.find("answer");
    if (it == row.end()) return absl::InvalidArgumentError("the row has no field `answer`");
    const nlohmann::json golds = it->is_array() ? *it : nlohmann::json::array({*it});
    for (const nlohmann::json& gold : golds) {
      if (!gold.is_string()) return absl::InvalidArgumentError("the row's field `answer` is neither a string nor a list of strings");
      if (Normal(text) == Normal(gold.get_ref<const std::string&>())) return Verdict{.score = 1, .reason = "right"};
    }
    return Verdict{.reason = "wrong"};
  }

 private:
  std::string Normal(absl::string_view text) const {
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
