#include "common/verifiers/regex.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/args.h"
#include "common/verifiers/pattern.h"

namespace sluice {
namespace {

class Regex : public Verifier {
 public:
  Regex(std::unique_ptr<RE2> pattern, bool full) : pattern_(std::move(pattern)), full_(full) {}

  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json&) const override {
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    // RE2 reads bad UTF-8 as no character at all.
    const std::string clean = Utf8Lossy(absl::StripAsciiWhitespace(text));
    if (!IsCheap(*pattern_, clean)) return Verdict{.reason = "too_complex"};
    const bool matches =
        full_ ? RE2::FullMatch(clean, *pattern_) : RE2::PartialMatch(clean, *pattern_);
    return matches ? Verdict{.score = 1, .reason = "match"} : Verdict{.reason = "no_match"};
  }
  absl::Status CheckRow(const nlohmann::json&) const override { return absl::OkStatus(); }

 private:
  const std::unique_ptr<RE2> pattern_;
  const bool full_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeRegex(const nlohmann::json& args) {
  ArgReader reader("regex", args);
  const std::string text = reader.String("pattern", "");
  const std::string match = reader.String("match", "search");
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  if (match != "search" && match != "full")
    return absl::InvalidArgumentError(
        absl::StrCat("regex: args.match is \"", match, "\", wanted: search or full"));
  absl::StatusOr<std::unique_ptr<RE2>> pattern = CompilePattern(text);
  if (!pattern.ok()) return Annotate(pattern.status(), "regex: args.pattern");
  return std::make_unique<Regex>(*std::move(pattern), match == "full");
}

}  // namespace sluice
