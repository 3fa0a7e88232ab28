#include "common/verifiers/text.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/verifiers/args.h"

namespace sluice {
namespace {

using Property = std::function<absl::StatusOr<double>(const Answer&, const nlohmann::json&)>;

std::vector<std::string> SplitCodePoints(absl::string_view text) {
  std::vector<std::string> out;
  for (const char c : text) {
    if (out.empty() || (static_cast<uint8_t>(c) & 0xC0) != 0x80) out.emplace_back();
    out.back().push_back(c);
  }
  return out;
}

std::vector<std::string> SplitWords(absl::string_view text) {
  std::vector<std::string> out;
  bool inside = false;
  for (const char c : text) {
    const bool part = absl::ascii_isalnum(c) || c == '\'';
    if (part && !inside) out.emplace_back();
    if (part) out.back().push_back(absl::ascii_tolower(c));
    inside = part;
  }
  return out;
}

absl::StatusOr<double> ScoreReversed(const Answer& answer, const nlohmann::json& row) {
  SLUICE_ASSIGN_OR_RETURN(const std::string source, GoldOf(row));
  std::vector<std::string> gold = SplitCodePoints(source);
  std::reverse(gold.begin(), gold.end());
  const std::vector<std::string> text = SplitCodePoints(answer.text);
  size_t right = 0;
  for (size_t i = 0; i < std::min(gold.size(), text.size()); ++i) right += gold[i] == text[i];
  // A missing end token counts as one more wrong place.
  const size_t places = std::max(gold.size(), text.size()) + (answer.truncated ? 1 : 0);
  return places == 0 ? 1.0 : static_cast<double>(right) / static_cast<double>(places);
}

absl::StatusOr<Property> MakeLength(ArgReader& reader) {
  const double target = reader.Number("target", 0, 1, 100'000);
  if (target < 1)
    return absl::InvalidArgumentError("text (property: length): args.target, in words, is missing");
  return Property([target](const Answer& answer, const nlohmann::json&) {
    return std::max(
        0.0, 1 - std::abs(static_cast<double>(SplitWords(answer.text).size()) - target) / target);
  });
}

absl::StatusOr<Property> MakeRepetition(ArgReader& reader) {
  const size_t n = static_cast<size_t>(reader.Integer("n", 2, 1, 8));
  return Property([n](const Answer& answer, const nlohmann::json&) {
    const std::vector<std::string> words = SplitWords(answer.text);
    if (words.size() < n) return 0.0;
    std::set<std::vector<std::string>> different;
    for (size_t i = 0; i + n <= words.size(); ++i)
      different.insert({words.begin() + i, words.begin() + i + n});
    return static_cast<double>(different.size()) / static_cast<double>(words.size() - n + 1);
  });
}

absl::StatusOr<Property> MakeRequiredWords(ArgReader& reader) {
  std::vector<std::string> required = reader.Strings("words");
  if (required.empty())
    return absl::InvalidArgumentError("text (property: words): args.words is missing or empty");
  for (std::string& word : required) word = absl::AsciiStrToLower(word);
  return Property([required](const Answer& answer, const nlohmann::json&) {
    const std::vector<std::string> words = SplitWords(answer.text);
    const auto found =
        std::count_if(required.begin(), required.end(), [&](const std::string& word) {
          return std::find(words.begin(), words.end(), word) != words.end();
        });
    return static_cast<double>(found) / static_cast<double>(required.size());
  });
}

absl::StatusOr<Property> MakeLetters(ArgReader& reader) {
  const std::string listed = absl::AsciiStrToLower(reader.String("letters", ""));
  if (listed.empty() ||
      !std::all_of(listed.begin(), listed.end(), [](char c) { return absl::ascii_isalpha(c); })) {
    return absl::InvalidArgumentError(absl::StrCat("text (property: letters): args.letters is \"",
                                                   listed, "\"; ASCII letters are needed"));
  }

  return Property([listed](const Answer& answer, const nlohmann::json&) {
    size_t letters = 0, hits = 0;
    for (const char c : answer.text) {
      if (!absl::ascii_isalpha(c)) continue;
      ++letters;
      hits += listed.find(absl::ascii_tolower(c)) != std::string::npos;
    }
    return letters == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(letters);
  });
}

class Text : public Verifier {
 public:
  Text(Property property, bool needs_gold)
      : property_(std::move(property)), needs_gold_(needs_gold) {}
  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    SLUICE_ASSIGN_OR_RETURN(
        const double score,
        property_({.text = std::string(text), .truncated = answer.truncated}, row));
    return Verdict{.score = score, .reason = "scored"};
  }
  absl::Status CheckRow(const nlohmann::json& row) const override {
    return needs_gold_ ? GoldOf(row).status() : absl::OkStatus();
  }

 private:
  const Property property_;
  const bool needs_gold_;
};

absl::StatusOr<Property> MakeProperty(const std::string& name, ArgReader& reader) {
  if (name == "reversed") return Property(ScoreReversed);
  if (name == "length") return MakeLength(reader);
  if (name == "repetition") return MakeRepetition(reader);
  if (name == "words") return MakeRequiredWords(reader);
  if (name == "letters") return MakeLetters(reader);
  return absl::InvalidArgumentError(
      absl::StrCat("text: args.property is \"", name,
                   "\"; the known ones are: reversed, length, repetition, words, letters"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeText(const nlohmann::json& args) {
  // The first reader only finds the property, whose name the second one uses in messages.
  ArgReader probe("text", args);
  const std::string name = probe.String("property", "");
  ArgReader reader(absl::StrCat("text (property: ", name, ")"), args);
  reader.String("property", "");
  absl::StatusOr<Property> property = MakeProperty(name, reader);
  // A wrong value is read as if it were absent, so the reader's error says more.
  SLUICE_RETURN_IF_ERROR(reader.status());
  SLUICE_RETURN_IF_ERROR(property.status());
  SLUICE_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<Text>(*std::move(property), /*needs_gold=*/name == "reversed");
}

}  // namespace sluice
