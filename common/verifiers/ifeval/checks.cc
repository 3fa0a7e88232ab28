#include "common/verifiers/ifeval/checks.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/verifiers/ifeval/split.h"
#include "nlohmann/json.hpp"

namespace sluice::ifeval {
namespace {

using nlohmann::json;

constexpr size_t kMaxTexts = 64, kMaxTextBytes = 1 << 16;
constexpr int64_t kMaxNumber = 1'000'000;

absl::string_view Trim(absl::string_view text) { return absl::StripAsciiWhitespace(text); }

// Reads the arguments of an instruction. The first problem is in status().
class Kwargs {
 public:
  explicit Kwargs(const json& kwargs) : kwargs_(kwargs) {}

  std::string Text(const char* name) {
    const json* const value = Find(name);
    if (value == nullptr) return "";
    if (value->is_string() && !value->get_ref<const std::string&>().empty() &&
        value->get_ref<const std::string&>().size() <= kMaxTextBytes)
      return Utf8Lossy(value->get_ref<const std::string&>());
    Complain(name, *value, "a text, not empty");
    return "";
  }

  std::vector<std::string> Texts(const char* name) {
    const json* const value = Find(name);
    std::vector<std::string> texts;
    if (value == nullptr) return texts;
    bool good = value->is_array() && !value->empty() && value->size() <= kMaxTexts;
    for (size_t i = 0; good && i < value->size(); ++i) {
      good = (*value)[i].is_string() && !(*value)[i].get_ref<const std::string&>().empty();
      if (good) texts.push_back(Utf8Lossy((*value)[i].get_ref<const std::string&>()));
    }
    if (!good) Complain(name, *value, absl::StrCat("a list of 1 to ", kMaxTexts, " texts"));
    return texts;
  }

  // Tables that pass through pandas have 3.0 for 3.
  int64_t Number(const char* name) {
    const json* const value = Find(name);
    if (value == nullptr) return 0;
    const double number = value->is_number() ? value->get<double>() : -1;
    if (number >= 0 && number <= kMaxNumber && number == std::floor(number))
      return static_cast<int64_t>(number);
    Complain(name, *value, absl::StrCat("a whole number from 0 to ", kMaxNumber));
    return 0;
  }

  // Compares a count with the number `name`, as the relation says.
  std::function<bool(uint64_t)> Relation(const char* relation, const char* name) {
    const std::string word = Text(relation);
    const auto number = static_cast<uint64_t>(Number(name));
    if (word == "at least") return [number](uint64_t count) { return count >= number; };
    if (word != "less than" && status_.ok())
      Complain(relation, word, "\"at least\" or \"less than\"");
    return [number](uint64_t count) { return count < number; };
  }

  const absl::Status& status() const { return status_; }

 private:
  const json* Find(const char* name) {
    const auto it = kwargs_.find(name);
    if (it != kwargs_.end() && !it->is_null()) return &*it;
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("has no argument ", name));
    return nullptr;
  }
  void Complain(const char* name, const json& value, const std::string& wanted) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat("has the argument ", name, " = ", JsonExcerpt(value), ", wanted: ", wanted));
  }

  const json& kwargs_;
  absl::Status status_;
};

absl::StatusOr<Check> Made(const Kwargs& read, std::function<bool(absl::string_view)> follows,
                           uint64_t passes = 1) {
  if (!read.status().ok()) return read.status();
  return Check{.follows = std::move(follows), .passes = passes};
}

// For instructions without arguments.
template <bool (*follows)(absl::string_view)>
absl::StatusOr<Check> Plain(const json&) {
  return Check{.follows = follows};
}

std::vector<std::string> LowerAll(std::vector<std::string> texts) {
  for (std::string& text : texts) text = Lower(text);
  return texts;
}

// Keywords.

absl::StatusOr<Check> MakeExistence(const json& kwargs) {
  Kwargs read(kwargs);
  const std::vector<std::string> keywords = LowerAll(read.Texts("keywords"));
  return Made(
      read,
      [keywords](absl::string_view answer) {
        const std::string lower = Lower(answer);
        return std::all_of(keywords.begin(), keywords.end(), [&](const std::string& keyword) {
          return !FindAll(lower, keyword).empty();
        });
      },
      1 + keywords.size());
}

absl::StatusOr<Check> MakeFrequency(const json& kwargs) {
  Kwargs read(kwargs);
  const std::string keyword = Lower(read.Text("keyword"));
  const auto fits = read.Relation("relation", "frequency");
  return Made(
      read, [=](absl::string_view answer) { return fits(FindAll(Lower(answer), keyword).size()); },
      2);
}

absl::StatusOr<Check> MakeForbiddenWords(const json& kwargs) {
  Kwargs read(kwargs);
  const std::vector<std::string> words = LowerAll(read.Texts("forbidden_words"));
  return Made(
      read,
      [words](absl::string_view answer) {
        const std::string lower = Lower(answer);
        return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
          return FindAll(lower, word, /*whole_words=*/true).empty();
        });
      },
      1 + words.size());
}

absl::StatusOr<Check> MakeLetterFrequency(const json& kwargs) {
  Kwargs read(kwargs);
  const std::string letter = Lower(read.Text("letter"));
  const auto fits = read.Relation("let_relation", "let_frequency");
  if (read.status().ok() && Utf8Length(letter) != letter.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has the argument letter = ", Excerpt(letter), ", wanted: one letter"));
  }
  return Made(
      read, [=](absl::string_view answer) { return fits(FindAll(Lower(answer), letter).size()); },
      2);
}

// Lengths.

absl::StatusOr<Check> MakeNumberSentences(const json& kwargs) {
  Kwargs read(kwargs);
  const auto fits = read.Relation("relation", "num_sentences");
  return Made(read, [fits](absl::string_view answer) { return fits(CountSentences(answer)); });
}

absl::StatusOr<Check> MakeNumberWords(const json& kwargs) {
  Kwargs read(kwargs);
  const auto fits = read.Relation("relation", "num_words");
  return Made(read, [fits](absl::string_view answer) { return fits(CountWords(answer)); });
}

// The pieces that `separator` parts, without blank ones at either end. Nothing if there is a blank
// one between others.
std::optional<std::vector<absl::string_view>> PartsBy(absl::string_view text,
                                                      absl::string_view separator) {
  std::vector<absl::string_view> parts;
  const std::vector<absl::string_view> pieces = SplitBy(text, separator);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const absl::string_view part = Trim(pieces[i]);
    if (!part.empty()) parts.push_back(part);
    else if (i > 0 && i + 1 < pieces.size()) return std::nullopt;
  }
  return parts;
}

absl::StatusOr<Check> MakeNumberParagraphs(const json& kwargs) {
  Kwargs read(kwargs);
  const auto number = static_cast<size_t>(read.Number("num_paragraphs"));
  return Made(read, [number](absl::string_view answer) {
    const auto parts = PartsBy(answer, "***");
    return parts.has_value() && parts->size() == number;
  });
}

// The first word of a paragraph in lower case, without quotes before it, up to a punctuation mark.
std::string FirstWord(absl::string_view paragraph) {
  absl::string_view word = Trim(paragraph);
  word = word.substr(0, word.find_first_of(" \t\r\n\f\v"));
  while (!word.empty() && (word[0] == '"' || word[0] == '\'')) word.remove_prefix(1);
  return Lower(word.substr(0, word.find_first_of(".,?!'\"")));
}

absl::StatusOr<Check> MakeNthParagraphFirstWord(const json& kwargs) {
  Kwargs read(kwargs);
  const auto number = static_cast<size_t>(read.Number("num_paragraphs"));
  const auto nth = static_cast<size_t>(read.Number("nth_paragraph"));
  const std::string first_word = Lower(read.Text("first_word"));
  if (read.status().ok() && (nth == 0 || nth > number)) {
    return absl::InvalidArgumentError(absl::StrCat("has the argument nth_paragraph = ", nth,
                                                   ", wanted: 1 to num_paragraphs, which is ",
                                                   number));
  }
  return Made(read, [=](absl::string_view answer) {
    const std::vector<absl::string_view> pieces = SplitBy(answer, "\n\n");
    const auto filled = static_cast<size_t>(std::count_if(
        pieces.begin(), pieces.end(), [](absl::string_view p) { return !Trim(p).empty(); }));
    if (filled != number || nth > pieces.size()) return false;
    return FirstWord(pieces[nth - 1]) == first_word;
  });
}

// Content.

// Pairs of brackets on one line.
uint64_t CountPlaceholders(absl::string_view text) {
  uint64_t count = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    for (size_t at = line.find('['); at != absl::string_view::npos; at = line.find('[', at)) {
      at = line.find(']', at);
      if (at == absl::string_view::npos) break;
      ++count;
    }
  }
  return count;
}

absl::StatusOr<Check> MakeNumberPlaceholders(const json& kwargs) {
  Kwargs read(kwargs);
  const auto number = static_cast<uint64_t>(read.Number("num_placeholders"));
  return Made(read,
              [number](absl::string_view answer) { return CountPlaceholders(answer) >= number; });
}

// Whether `text` begins with the marker, with or without a space behind each of its inner stops.
bool BeginsWithMarker(absl::string_view text, absl::string_view marker) {
  size_t at = 0;
  for (size_t i = 0; i < marker.size(); ++i) {
    if (at >= text.size() || text[at] != marker[i]) return false;
    ++at;
    const bool inner = marker[i] == '.' && i + 1 < marker.size();
    if (inner && at < text.size() && absl::ascii_isspace(static_cast<unsigned char>(text[at])))
      ++at;
  }
  return true;
}

absl::StatusOr<Check> MakePostscript(const json& kwargs) {
  Kwargs read(kwargs);
  const std::string marker = Lower(read.Text("postscript_marker"));
  if (marker.size() > 32)
    return absl::InvalidArgumentError("has an argument postscript_marker of more than 32 bytes");
  return Made(
      read,
      [marker](absl::string_view answer) {
        const std::string lower = Lower(answer);
        for (size_t at = 0; at < lower.size(); ++at) {
          if (BeginsWithMarker(absl::string_view(lower).substr(at), marker)) return true;
        }
        return false;
      },
      1 + marker.size());
}

// Formats.

// Lines that begin with - or with one *.
uint64_t CountBullets(absl::string_view text) {
  uint64_t count = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const absl::string_view rest = absl::StripLeadingAsciiWhitespace(line);
    if (rest.empty()) continue;
    if (rest[0] == '-' || (rest[0] == '*' && rest.size() > 1 && rest[1] != '*')) ++count;
  }
  return count;
}

absl::StatusOr<Check> MakeNumberBulletLists(const json& kwargs) {
  Kwargs read(kwargs);
  const auto number = static_cast<uint64_t>(read.Number("num_bullets"));
  return Made(read, [number](absl::string_view answer) { return CountBullets(answer) == number; });
}

bool IsConstrainedResponse(absl::string_view answer) {
  for (const char* option : {"My answer is yes.", "My answer is no.", "My answer is maybe."}) {
    if (absl::StrContains(answer, option)) return true;
  }
  return false;
}

// Texts on one line between two marks, * or **, with no * between them, that are not blank.
uint64_t CountBetween(absl::string_view text, absl::string_view mark) {
  uint64_t count = 0;
  for (size_t at = text.find(mark); at != absl::string_view::npos; at = text.find(mark, at)) {
    const size_t begin = at + mark.size(), end = text.find_first_of("*\n", begin);
    if (end == absl::string_view::npos) break;
    if (!absl::StartsWith(text.substr(end), mark)) {
      ++at;
      continue;
    }
    if (!Trim(text.substr(begin, end - begin)).empty()) ++count;
    at = end + mark.size();
  }
  return count;
}

absl::StatusOr<Check> MakeNumberHighlights(const json& kwargs) {
  Kwargs read(kwargs);
  const auto number = static_cast<uint64_t>(read.Number("num_highlights"));
  return Made(
      read,
      [number](absl::string_view answer) {
        return CountBetween(answer, "*") + CountBetween(answer, "**") >= number;
      },
      2);
}

absl::StatusOr<Check> MakeMultipleSections(const json& kwargs) {
  Kwargs read(kwargs);
  // The name of the argument is spelt like this in the data.
  const std::string splitter(Trim(read.Text("section_spliter")));
  const auto number = static_cast<uint64_t>(read.Number("num_sections"));
  if (read.status().ok() && splitter.empty())
    return absl::InvalidArgumentError("has an argument section_spliter that is blank");
  return Made(read, [=](absl::string_view answer) {
    uint64_t count = 0;
    for (const size_t at : FindAll(answer, splitter)) {
      absl::string_view rest = answer.substr(at + splitter.size());
      if (!rest.empty() && absl::ascii_isspace(static_cast<unsigned char>(rest[0])))
        rest.remove_prefix(1);
      if (!rest.empty() && absl::ascii_isdigit(static_cast<unsigned char>(rest[0]))) ++count;
    }
    return count >= number;
  });
}

bool IsJson(absl::string_view answer) {
  absl::string_view text = Trim(answer);
  for (const char* fence : {"```json", "```Json", "```JSON", "```"}) {
    if (absl::ConsumePrefix(&text, fence)) break;
  }
  absl::ConsumeSuffix(&text, "```");
  text = Trim(text);
  return json::accept(text.begin(), text.end());
}

bool HasTitle(absl::string_view answer) {
  for (const absl::string_view line : absl::StrSplit(answer, '\n')) {
    const size_t begin = line.find("<<"), end = line.rfind(">>");
    if (begin == absl::string_view::npos || end == absl::string_view::npos || end < begin + 3)
      continue;
    absl::string_view title = line.substr(begin, end + 2 - begin);
    while (!title.empty() && title[0] == '<') title.remove_prefix(1);
    while (!title.empty() && title.back() == '>') title.remove_suffix(1);
    if (!Trim(title).empty()) return true;
  }
  return false;
}

// Combinations, beginnings and ends, case, punctuation.

bool AreTwoResponses(absl::string_view answer) {
  const auto parts = PartsBy(answer, "******");
  return parts.has_value() && parts->size() == 2 && (*parts)[0] != (*parts)[1];
}

absl::StatusOr<Check> MakeRepeatPrompt(const json& kwargs) {
  Kwargs read(kwargs);
  const std::string prompt = Lower(Trim(read.Text("prompt_to_repeat")));
  return Made(read, [prompt](absl::string_view answer) {
    return absl::StartsWith(Lower(Trim(answer)), prompt);
  });
}

absl::StatusOr<Check> MakeEndChecker(const json& kwargs) {
  Kwargs read(kwargs);
  const std::string phrase = Lower(Trim(read.Text("end_phrase")));
  return Made(read, [phrase](absl::string_view answer) {
    absl::string_view text = Trim(answer);
    while (!text.empty() && text[0] == '"') text.remove_prefix(1);
    while (!text.empty() && text.back() == '"') text.remove_suffix(1);
    return absl::EndsWith(Lower(text), phrase);
  });
}

absl::StatusOr<Check> MakeCapitalWordFrequency(const json& kwargs) {
  Kwargs read(kwargs);
  const auto fits = read.Relation("capital_relation", "capital_frequency");
  return Made(read, [fits](absl::string_view answer) { return fits(CountCapitalWords(answer)); });
}

bool HasNoComma(absl::string_view answer) { return !absl::StrContains(answer, ','); }

bool IsQuotation(absl::string_view answer) {
  const absl::string_view text = Trim(answer);
  return text.size() > 1 && text[0] == '"' && text.back() == '"';
}

}  // namespace

const std::vector<InstructionRow>& Instructions() {
  static const auto* const rows = new std::vector<InstructionRow>{
      {"change_case:capital_word_frequency",
       "so many pieces between white space have upper-case letters and no lower-case ones",
       MakeCapitalWordFrequency},
      {"change_case:english_capital", "all letters are in upper case", Plain<IsUpper>},
      {"change_case:english_lowercase", "all letters are in lower case", Plain<IsLower>},
      {"combination:repeat_prompt", "the answer begins with a text", MakeRepeatPrompt},
      {"combination:two_responses", "****** parts two different texts", Plain<AreTwoResponses>},
      {"detectable_content:number_placeholders", "at least so many [..] on a line each",
       MakeNumberPlaceholders},
      {"detectable_content:postscript", "the marker, such as P.S., is there", MakePostscript},
      {"detectable_format:constrained_response", "one of `My answer is yes.`, no, maybe",
       Plain<IsConstrainedResponse>},
      {"detectable_format:json_format", "the answer, perhaps in a fence, is JSON", Plain<IsJson>},
      {"detectable_format:multiple_sections", "at least so many headings with numbers",
       MakeMultipleSections},
      {"detectable_format:number_bullet_lists", "exactly so many lines begin with - or *",
       MakeNumberBulletLists},
      {"detectable_format:number_highlighted_sections", "at least so many *..* or **..**",
       MakeNumberHighlights},
      {"detectable_format:title", "a line has <<..>>", Plain<HasTitle>},
      {"keywords:existence", "all keywords are there", MakeExistence},
      {"keywords:forbidden_words", "none of the words is there", MakeForbiddenWords},
      {"keywords:frequency", "the keyword is there so often", MakeFrequency},
      {"keywords:letter_frequency", "the letter is there so often", MakeLetterFrequency},
      {"length_constraints:nth_paragraph_first_word",
       "so many paragraphs between blank lines, and a word begins one of them",
       MakeNthParagraphFirstWord},
      {"length_constraints:number_paragraphs", "exactly so many paragraphs, parted by ***",
       MakeNumberParagraphs},
      {"length_constraints:number_sentences", "so many sentences", MakeNumberSentences},
      {"length_constraints:number_words", "so many words", MakeNumberWords},
      {"punctuation:no_comma", "no comma is there", Plain<HasNoComma>},
      {"startend:end_checker", "the answer ends with a text", MakeEndChecker},
      {"startend:quotation", "the answer is in double quotes", Plain<IsQuotation>},
  };
  return *rows;
}

absl::StatusOr<Check> MakeCheck(absl::string_view id, const json& kwargs) {
  for (const InstructionRow& row : Instructions()) {
    if (row.id != id) continue;
    absl::StatusOr<Check> check = row.make(kwargs);
    if (check.ok()) return check;
    return absl::InvalidArgumentError(absl::StrCat(id, " ", check.status().message()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", Excerpt(id), "\" is no instruction that can be checked; these can: ",
      absl::StrJoin(Instructions(), ", ", [](std::string* out, const InstructionRow& row) {
        absl::StrAppend(out, row.id);
      })));
}

}  // namespace sluice::ifeval
