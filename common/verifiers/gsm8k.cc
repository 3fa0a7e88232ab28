#include "common/verifiers/gsm8k.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"
#include "common/verifiers/decimal.h"
#include "common/verifiers/math/judge.h"

namespace sluice {
namespace {

constexpr absl::string_view kMarker = "####";

// Returns the rest of the line after the last marker.
std::optional<absl::string_view> TextAfterMarker(absl::string_view text) {
  const size_t at = text.rfind(kMarker);
  if (at == absl::string_view::npos) return std::nullopt;
  text.remove_prefix(at + kMarker.size());
  return text.substr(0, text.find('\n'));
}

mpq_class ToGmp(const Rational& value) {
  const auto convert = [](__int128 whole) {
    const bool negative = whole < 0;
    if (negative) whole = -whole;
    mpz_class out(static_cast<unsigned long>(whole >> 64));
    out = (out << 64) + static_cast<unsigned long>(whole);
    return negative ? mpz_class(-out) : out;
  };
  return {convert(value.numerator), convert(value.denominator)};
}

Verdict ScoreFlexibly(absl::string_view text, const Rational& gold) {
  math::Budget budget;
  const math::Outcome outcome = math::JudgeNumber(text, ToGmp(gold), budget);
  return {.score = outcome == math::Outcome::kRight ? 1.0 : 0.0, .reason = math::ReasonOf(outcome)};
}

class Gsm8k : public Verifier {
 public:
  explicit Gsm8k(bool flexible) : flexible_(flexible) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    SLUICE_ASSIGN_OR_RETURN(const Rational gold, GoldNumber(row));
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    if (flexible_) return ScoreFlexibly(text, gold);
    const std::optional<absl::string_view> stated = TextAfterMarker(text);
    if (!stated) return Verdict{.reason = "no_answer"};
    const std::optional<Rational> value = ParseRational(*stated);
    if (!value) return Verdict{.reason = "unreadable"};
    return *value == gold ? Verdict{.score = 1, .reason = "right"} : Verdict{.reason = "wrong"};
  }
  absl::Status CheckRow(const nlohmann::json& row) const override {
    return GoldNumber(row).status();
  }

 private:
  static absl::StatusOr<Rational> GoldNumber(const nlohmann::json& row) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text, GoldOf(row));
    const std::optional<Rational> gold = ParseRational(TextAfterMarker(text).value_or(text));
    if (gold) return *gold;
    return absl::InvalidArgumentError(
        absl::StrCat("field `answer` is \"", absl::CHexEscape(text.substr(0, 80)),
                     "\", wanted: a number, or a text with a number behind its last ####"));
  }

  const bool flexible_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeGsm8k(const nlohmann::json& args) {
  ArgReader reader("gsm8k", args);
  const std::string extract = reader.String("extract", "strict");
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  if (extract != "strict" && extract != "flexible") {
    return absl::InvalidArgumentError(absl::StrCat("gsm8k: args.extract is \"", extract,
                                                   "\"; the known ones are: strict, flexible"));
  }
  return std::make_unique<Gsm8k>(extract == "flexible");
}

}  // namespace sluice
