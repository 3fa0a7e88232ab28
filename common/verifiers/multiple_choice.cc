#include "common/verifiers/multiple_choice.h"

#include <re2/re2.h>

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/answer_part.h"
#include "common/verifiers/args.h"

namespace sluice {
namespace {

constexpr size_t kMaxChoices = 26;

// The letter with which `text` begins, in any of its usual forms: "C", "(C)", "C. Paris",
// "\text{C}". A letter with a space behind it is a word, as in "A dog", unless it is in brackets.
std::optional<char> LeadingLetter(absl::string_view text) {
  static const RE2* const letter = new RE2(
      R"(^\s*(?:\\text(?:bf)?\{)?(?:[\(\[\*]+([A-Za-z])[\)\]\*]|([A-Za-z])(?:[\.\):,\}]|\s*$)))");
  std::string fenced, bare;
  if (!RE2::PartialMatch(re2::StringPiece(text.data(), text.size()), *letter, &fenced, &bare))
    return std::nullopt;
  return absl::ascii_toupper(static_cast<unsigned char>((fenced.empty() ? bare : fenced)[0]));
}

std::string Plain(absl::string_view text) {
  return absl::AsciiStrToLower(absl::StripAsciiWhitespace(absl::StripSuffix(text, ".")));
}

struct Row {
  char gold = 'A';
  std::vector<std::string> choices;  // As Plain() gives them.
};

// Which letters the rules find in an answer. More than one: it is ambiguous.
class Reader {
 public:
  explicit Reader(const Row& row) : row_(row) {}

  std::set<char> Read(absl::string_view text) const {
    if (const auto box = LastBox(text)) return LetterOf(*box);
    if (const auto tag = LastTag(text, "answer")) return LetterOf(*tag);
    std::set<char> found = Behind(text);
    if (found.empty()) found = Bold(text);
    if (found.empty()) found = LetterOf(LastLine(text));
    return found;
  }

 private:
  bool Known(char letter) const {
    return row_.choices.empty() || static_cast<size_t>(letter - 'A') < row_.choices.size();
  }

  std::set<char> LetterOf(absl::string_view text) const {
    if (const auto letter = LeadingLetter(text); letter && Known(*letter)) return {*letter};
    std::set<char> found;
    for (size_t i = 0; i < row_.choices.size(); ++i) {
      if (Plain(text) == row_.choices[i]) found.insert(static_cast<char>('A' + i));
    }
    return found;
  }

  // All matches of a pattern with the letter as its group.
  std::set<char> All(absl::string_view text, const RE2& pattern) const {
    std::set<char> found;
    re2::StringPiece rest(text.data(), text.size());
    std::string letter;
    while (RE2::FindAndConsume(&rest, pattern, &letter)) {
      const char upper = absl::ascii_toupper(static_cast<unsigned char>(letter[0]));
      if (Known(upper)) found.insert(upper);
    }
    return found;
  }

  // Those of the last sentence that says "answer is", "answer:" or the like. What it says of other
  // options before, as in "Option A is wrong", is no choice.
  std::set<char> Behind(absl::string_view text) const {
    // A lower-case letter counts only in brackets: "the answer is a bit long" names none.
    static const RE2* const marked = new RE2(
        R"((?i:answer\s+is|answer\s*:|answer\s+would\s+be|choice\s+is|choice\s*:|option\s+is)"
        R"(|choose|pick)(?i:\s+(?:option|choice))?[\s:]*\**\s*(?:option\s+)?[\(\[\*]*)"
        R"((?:([A-Z])|[\(\[]([a-z]))[\)\]\*]*(?:[\.\):,;\s]|$))");
    std::set<char> found;
    size_t last = 0;  // Behind the letter found last.
    const re2::StringPiece whole(text.data(), text.size());
    re2::StringPiece parts[3];
    for (size_t at = 0; marked->Match(whole, at, whole.size(), RE2::UNANCHORED, parts, 3);
         at = static_cast<size_t>(parts[0].data() - text.data()) + parts[0].size()) {
      const char* const place = parts[1].empty() ? parts[2].data() : parts[1].data();
      const char letter = absl::ascii_toupper(static_cast<unsigned char>(*place));
      if (!Known(letter)) continue;
      // If a sentence ends between two statements, the later one counts.
      const auto begin = static_cast<size_t>(place - text.data());
      if (text.substr(last, begin - last).find_first_of(".!?\n") != absl::string_view::npos)
        found.clear();
      found.insert(letter);
      last = begin + 1;
    }
    return found;
  }

  std::set<char> Bold(absl::string_view text) const {
    static const RE2* const bold = new RE2(R"(\*\*\s*\(?([A-Z])\)?[\.\):]?(?:\s[^*\n]*)?\*\*)");
    return All(text, *bold);
  }

  const Row& row_;
};

class MultipleChoice : public Verifier {
 public:
  absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const override {
    SLUICE_ASSIGN_OR_RETURN(const Row read, ReadRow(row));
    absl::string_view text;
    if (!AfterThinking(answer.text, &text)) return Verdict{.reason = "unfinished"};
    const std::string clean = Utf8Lossy(text);
    const std::set<char> chosen = Reader(read).Read(clean);
    if (chosen.empty()) return Verdict{.reason = "no_answer"};
    if (chosen.size() > 1) return Verdict{.reason = "ambiguous"};
    return *chosen.begin() == read.gold ? Verdict{.score = 1, .reason = "right"}
                                        : Verdict{.reason = "wrong"};
  }
  absl::Status CheckRow(const nlohmann::json& row) const override { return ReadRow(row).status(); }

 private:
  static absl::StatusOr<Row> ReadRow(const nlohmann::json& row) {
    Row read;
    if (const auto choices = row.find("choices"); choices != row.end()) {
      if (!choices->is_array() || choices->empty() || choices->size() > kMaxChoices)
        return absl::InvalidArgumentError("field `choices` must be a list of 1 to 26 texts");
      for (const nlohmann::json& choice : *choices) {
        SLUICE_ASSIGN_OR_RETURN(const std::string text, GoldText(choice, "choices"));
        read.choices.push_back(Plain(text));
      }
    }
    SLUICE_ASSIGN_OR_RETURN(const std::string gold, GoldOf(row));
    const absl::string_view stripped = absl::StripAsciiWhitespace(gold);
    // A choice whose text is one letter is not told from the letter of another choice.
    for (const std::string& choice : read.choices) {
      if (choice.size() == 1 && absl::ascii_isalpha(static_cast<unsigned char>(choice[0])))
        return absl::InvalidArgumentError(
            absl::StrCat("field `choices` has the text \"", choice,
                         "\", which cannot be told from the letter of a choice"));
    }
    for (size_t i = 0; i < read.choices.size(); ++i) {
      if (Plain(gold) != read.choices[i]) continue;
      read.gold = static_cast<char>('A' + i);
      return read;
    }
    const size_t letters = read.choices.empty() ? kMaxChoices : read.choices.size();
    if (stripped.size() == 1 && absl::ascii_isalpha(static_cast<unsigned char>(stripped[0]))) {
      read.gold = absl::ascii_toupper(static_cast<unsigned char>(stripped[0]));
      if (static_cast<size_t>(read.gold - 'A') < letters) return read;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "field `answer` is \"", Utf8Prefix(gold, 80), "\", wanted: a letter from A to ",
        std::string(1, static_cast<char>('A' + letters - 1)),
        read.choices.empty() ? "" : ", or one of `choices`"));
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeMultipleChoice(const nlohmann::json& args) {
  SLUICE_RETURN_IF_ERROR(ArgReader("multiple_choice", args).Finish());
  return std::make_unique<MultipleChoice>();
}

}  // namespace sluice
