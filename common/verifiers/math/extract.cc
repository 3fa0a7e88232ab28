#include "common/verifiers/math/extract.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/verifiers/math/boxes.h"
#include "common/verifiers/math/plain.h"
#include "common/verifiers/math/prose.h"

namespace sluice::math {
namespace {

constexpr size_t kTailBytes = 64 << 10;
constexpr size_t kMaxShortGold = 64;
constexpr size_t kMaxBare = 400;  // Bytes of a text that is an answer as a whole.

absl::string_view Strip(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  for (bool moved = true; moved;) {
    moved = false;
    for (const absl::string_view mark : {"**", "\\\"", "\""})
      moved |= absl::ConsumePrefix(&text, mark) || absl::ConsumeSuffix(&text, mark);
    text = absl::StripAsciiWhitespace(text);
  }
  return text;
}

std::optional<std::string> LimitSize(std::string answer, Budget& budget) {
  if (answer.size() > Budget::kAnswerBytes) {
    budget.GiveUp();
    return std::nullopt;
  }
  return answer;
}

// What a chat template writes after the answer is not the answer.
absl::string_view CutAtSpecialToken(absl::string_view text) {
  for (size_t at = text.find("<|"); at != absl::string_view::npos; at = text.find("<|", at + 2)) {
    for (const absl::string_view token :
         {"<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>"}) {
      if (absl::StartsWith(text.substr(at), token)) return text.substr(0, at);
    }
  }
  return text;
}

// The last position of one of the words that announce an answer, behind the word, or npos.
// `text` is in lower case.
size_t FindMarker(absl::string_view text) {
  size_t best = absl::string_view::npos;
  for (const absl::string_view marker :
       {"answer", "réponse", "reponse", "答案", "respuesta", "antwort", "ответ", "الجواب",
        "الإجابة", "risposta", "resposta", "答え"}) {
    const size_t at = text.rfind(marker);
    if (at == absl::string_view::npos) continue;
    const size_t end = at + marker.size();
    if (at > 0 && absl::ascii_isalpha(text[at - 1])) continue;
    if (best == absl::string_view::npos || end > best) best = end;
  }
  const size_t line = text.rfind("\na:");
  const size_t at_line = line != absl::string_view::npos ? line + 3
                         : absl::StartsWith(text, "a:")  ? 2
                                                         : absl::string_view::npos;
  if (at_line != absl::string_view::npos && (best == absl::string_view::npos || at_line > best))
    best = at_line;
  return best;
}

absl::string_view SkipCopula(absl::string_view text) {
  for (bool moved = true; moved;) {
    text = absl::StripLeadingAsciiWhitespace(text);
    moved = false;
    for (const absl::string_view word : {"**", ":", "：", "is ", "is:", "are ", "to the question",
                                         "为", "是", "est ", "es ", "=", "\""}) {
      moved |= absl::ConsumePrefix(&text, word);
    }
  }
  return text;
}

bool IsConnector(absl::string_view text, bool comma) {
  text = absl::StripAsciiWhitespace(text);
  if (comma && text == ",") return true;
  absl::ConsumePrefix(&text, ",");
  text = absl::StripAsciiWhitespace(text);
  while (absl::ConsumePrefix(&text, "$") || absl::ConsumeSuffix(&text, "$"))
    text = absl::StripAsciiWhitespace(text);
  if (text == "and" || text == "&" || text == "et" || text == "ou") return true;
  // "or", also with a few words more: 7 or maybe 8.
  return text.size() < 30 && (text == "or" || absl::StartsWith(text, "or ") ||
                              absl::EndsWith(text, " or") || absl::StrContains(text, " or "));
}

// The mentions [first, last] as one answer.
std::string JoinMentions(absl::string_view text, const std::vector<Mention>& mentions, size_t first,
                         size_t last) {
  std::string out;
  for (size_t i = first; i <= last; ++i) {
    const Mention& mention = mentions[i];
    absl::StrAppend(&out, i == first ? "" : " \\text{and} ",
                    text.substr(mention.begin, mention.end - mention.begin));
  }
  return out;
}

absl::string_view Between(absl::string_view text, const Mention& a, const Mention& b) {
  absl::string_view gap = text.substr(a.end, b.begin - a.end);
  for (const absl::string_view sign : {"$", "\\)", "\\]"}) {
    if (absl::ConsumePrefix(&gap, sign)) break;
  }
  for (const absl::string_view sign : {"$", "\\(", "\\["}) {
    if (absl::ConsumeSuffix(&gap, sign)) break;
  }
  return gap;
}

// The first value of a sentence, with those that "and" joins to it.
std::optional<std::string> FirstMention(absl::string_view sentence, Budget& budget) {
  const std::vector<Mention> mentions = FindMentions(sentence, budget);
  if (mentions.empty()) return std::nullopt;
  size_t first = 0;
  const auto inside = [&](size_t i) {
    return sentence.substr(mentions[i].begin, mentions[i].end - mentions[i].begin);
  };
  // In "the largest $n$ is 34" the formula only names the value.
  const bool names =
      mentions[0].formula && std::none_of(inside(0).begin(), inside(0).end(), absl::ascii_isdigit);
  const size_t copula = sentence.find(" is ", mentions[0].end);
  if (names && copula != absl::string_view::npos) {
    size_t next = 1;
    while (next < mentions.size() && mentions[next].begin < copula) ++next;
    if (next < mentions.size()) first = next;
  }
  size_t last = first;
  while (last + 1 < mentions.size() &&
         IsConnector(Between(sentence, mentions[last], mentions[last + 1]), /*comma=*/true))
    ++last;
  for (size_t i = first; i <= last; ++i) {
    if (mentions[i].partial) return std::nullopt;
  }
  return JoinMentions(sentence, mentions, first, last);
}

std::optional<std::string> LastMention(absl::string_view text, Budget& budget) {
  const std::vector<Mention> mentions = FindMentions(text, budget);
  if (mentions.empty()) return std::nullopt;
  const size_t last = mentions.size() - 1;
  size_t first = last;
  while (first > 0 &&
         IsConnector(Between(text, mentions[first - 1], mentions[first]), /*comma=*/false))
    --first;
  for (size_t i = first; i <= last; ++i) {
    if (mentions[i].partial) return std::nullopt;
  }
  return JoinMentions(text, mentions, first, last);
}

std::optional<std::string> AnswerOfSentence(absl::string_view text, Budget& budget) {
  text = SkipCopula(text);
  const absl::string_view sentence = Strip(text.substr(0, FindSentenceEnd(text, 0, budget)));
  if (sentence.empty()) return std::nullopt;
  // "The answer is not 7" gives no answer, in words.
  if (absl::StartsWith(sentence, "not ")) return absl::StrCat("\\text{", sentence, "}");
  if (sentence.size() <= kMaxBare && IsBareAnswer(sentence, budget)) return std::string(sentence);
  return FirstMention(sentence, budget);
}

// Rules 4 to 6.
std::optional<std::string> ReadProse(absl::string_view written, Budget& budget) {
  if (!budget.Spend(static_cast<int64_t>(std::min(written.size(), kTailBytes))))
    return std::nullopt;
  if (written.size() > kTailBytes) written.remove_prefix(written.size() - kTailBytes);
  const std::string plain = PlainText(written);
  const absl::string_view text = Strip(plain);
  if (text.empty()) return std::nullopt;
  const std::string lower = absl::AsciiStrToLower(text);
  const size_t marker = FindMarker(lower);
  if (marker == absl::string_view::npos && text.size() <= kMaxBare && IsBareAnswer(text, budget))
    return std::string(text);
  if (marker != absl::string_view::npos) {
    if (auto answer = AnswerOfSentence(text.substr(marker), budget)) return answer;
  }
  if (auto answer = LastMention(text, budget)) return answer;
  // A word may be the answer.
  const absl::string_view rest =
      marker == absl::string_view::npos ? text : SkipCopula(text.substr(marker));
  if (rest.empty() || rest.size() > 64) return std::nullopt;
  const absl::string_view words = rest.substr(0, FindSentenceEnd(rest, 0, budget));
  if (absl::StrContains(words, '\\')) return std::string(words);
  return absl::StrCat("\\text{", words, "}");
}

std::optional<std::string> ReadTags(absl::string_view text, Budget& budget) {
  const size_t close = text.rfind("</answer>");
  const size_t open = close == absl::string_view::npos ? close : text.rfind("<answer>", close);
  if (open != absl::string_view::npos) {
    const size_t begin = open + absl::string_view("<answer>").size();
    return ReadProse(text.substr(begin, close - begin), budget);
  }
  if (const size_t marker = text.rfind("####"); marker != absl::string_view::npos) {
    const absl::string_view rest = text.substr(marker + 4);
    const absl::string_view line = rest.substr(0, std::min(rest.find('\n'), kTailBytes));
    return std::string(Strip(PlainText(line)));
  }
  return std::nullopt;
}

// What is in the boxes, as one list.
std::string JoinBoxes(absl::string_view text, const std::vector<Box>& boxes) {
  std::string out;
  for (const Box& box : boxes) {
    absl::StrAppend(&out, out.empty() ? "" : " \\text{and} ",
                    text.substr(box.begin, box.end - box.begin));
    if (out.size() > 4 * Budget::kAnswerBytes) break;  // It is too long anyway.
  }
  return out;
}

// "The final answer is x" behind the last box.
std::optional<std::string> ReadFinalSentence(absl::string_view rest, Budget& budget) {
  const std::string phrase = "final answer is";
  rest = rest.substr(0, kTailBytes);
  if (!budget.Spend(static_cast<int64_t>(rest.size()) / 8)) return std::nullopt;
  const size_t at = absl::AsciiStrToLower(rest).rfind(phrase);
  if (at == absl::string_view::npos) return std::nullopt;
  const std::string sentence = PlainText(rest.substr(at + phrase.size()));
  return AnswerOfSentence(sentence, budget);
}

}  // namespace

std::optional<std::string> ExtractAnswer(absl::string_view written, Extraction extraction,
                                         Budget& budget) {
  if (written.size() > Budget::kTextBytes ||
      !budget.Spend(static_cast<int64_t>(written.size()) / 16)) {
    budget.GiveUp();
    return std::nullopt;
  }
  std::string undoubled;
  absl::string_view text = CutAtSpecialToken(written);
  if (text.size() <= kTailBytes && absl::StrContains(text, "\\\\")) {
    undoubled = UndoubleBackslashes(text);
    text = undoubled;
  }

  std::vector<Box> boxes;
  if (extraction != Extraction::kFlexible) boxes = FindBoxes(text, budget);
  if (budget.spent()) return std::nullopt;
  if (!boxes.empty()) {
    if (extraction == Extraction::kAuto) {
      if (auto final = ReadFinalSentence(text.substr(boxes.back().end), budget))
        return LimitSize(*std::move(final), budget);
    }
    const std::string inside = JoinBoxes(text, boxes);
    if (inside.size() > Budget::kAnswerBytes) return LimitSize(inside, budget);
    return LimitSize(std::string(Strip(PlainText(inside))), budget);
  }
  std::optional<std::string> answer;
  if (extraction != Extraction::kBoxed) answer = ReadTags(text, budget);
  const bool prose = extraction == Extraction::kAuto || extraction == Extraction::kFlexible;
  if (!answer && prose) answer = ReadProse(text, budget);
  if (!answer || answer->empty()) return std::nullopt;
  return LimitSize(*std::move(answer), budget);
}

std::optional<std::string> ExtractGold(absl::string_view text, Budget& budget) {
  // A short gold is an answer as a whole: "June 20" is not 20.
  const std::string lower = absl::AsciiStrToLower(text.substr(0, kMaxShortGold));
  const bool marked = absl::StrContains(lower, "box") || absl::StrContains(lower, "answer") ||
                      absl::StrContains(lower, "##");
  if (text.size() <= kMaxShortGold && !marked) {
    const std::string plain = PlainText(CutAtSpecialToken(UndoubleBackslashes(text)));
    const absl::string_view whole = Strip(plain);
    if (whole.empty()) return std::nullopt;
    return std::string(whole);
  }
  if (auto answer = ExtractAnswer(text, Extraction::kAuto, budget)) return answer;
  if (budget.spent()) return std::nullopt;
  const std::string plain = PlainText(text.substr(0, Budget::kAnswerBytes + 1));
  const absl::string_view whole = absl::StripAsciiWhitespace(plain);
  if (whole.empty()) return std::nullopt;
  return LimitSize(std::string(whole), budget);
}

}  // namespace sluice::math
