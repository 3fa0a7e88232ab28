#include "tools/sluice/data/overlap.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/splitmix.h"
#include "common/base/utf8.h"

namespace sluice::cli {
namespace {

bool IsPartOfWord(UChar32 c) { return u_isalnum(c) || (U_GET_GC_MASK(c) & U_GC_M_MASK) != 0; }

// Whether letters of this script stand for themselves, since nothing separates words.
bool StandsAlone(UChar32 c) {
  switch (u_getIntPropertyValue(c, UCHAR_LINE_BREAK)) {
    case U_LB_IDEOGRAPHIC:
    case U_LB_CONDITIONAL_JAPANESE_STARTER:
    case U_LB_COMPLEX_CONTEXT: return true;
    default: return false;
  }
}

// Whether the character makes a formula what it is. Hyphens, stars and slashes do so beside a digit
// or a bracket; elsewhere they belong to prose.
bool IsOperator(absl::string_view text, size_t at, UChar32 c) {
  if (c == '^' || u_charType(c) == U_MATH_SYMBOL) return true;
  if (c != '-' && c != '*' && c != '/') return false;
  const auto is_formula = [](char beside) {
    return absl::ascii_isdigit(static_cast<unsigned char>(beside)) ||
           absl::StrContains("()[]{}", beside);
  };
  const absl::string_view before = absl::StripTrailingAsciiWhitespace(text.substr(0, at)),
                          after = absl::StripLeadingAsciiWhitespace(text.substr(at + 1));
  return (!before.empty() && is_formula(before.back())) ||
         (!after.empty() && is_formula(after.front()));
}

uint64_t Extend(uint64_t hash, uint64_t next) { return Mix64(hash + kGolden + next); }

// Calls `take` with the hash of each run of words, where it begins, and where it ends.
void ForEachRun(const std::vector<TextWord>& words,
                const std::function<void(uint64_t hash, size_t begin, size_t end)>& take) {
  if (words.empty()) return;
  const size_t length = std::min(words.size(), Overlap::kWords);
  for (size_t first = 0; first + length <= words.size(); ++first) {
    uint64_t hash = length;
    for (size_t i = first; i < first + length; ++i) hash = Extend(hash, words[i].hash);
    take(hash, words[first].begin, words[first + length - 1].end);
  }
}

}  // namespace

std::vector<TextWord> WordsOf(absl::string_view text) {
  std::vector<TextWord> words;
  bool open = false;  // The last word may go on.
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Length(text.substr(at));
    if (length == 0) {  // Ill-formed bytes are no letters.
      open = false;
      ++at;
      continue;
    }
    const auto c = static_cast<UChar32>(DecodeUtf8(text.data() + at));
    const bool operation = !IsPartOfWord(c) && IsOperator(text, at, c);
    if (!IsPartOfWord(c) && !operation) {
      open = false;
    } else {
      const bool alone = operation || StandsAlone(c);
      if (!open || alone) words.push_back({.begin = at});
      words.back().hash = Extend(words.back().hash, static_cast<uint64_t>(u_tolower(c)));
      words.back().end = at + length;
      open = !alone;
    }
    at += length;
  }

  if (words.empty() && !text.empty()) {
    words.push_back({.begin = 0, .end = text.size()});
    for (const char c : text) words[0].hash = Extend(words[0].hash, static_cast<uint8_t>(c));
  }
  return words;
}

absl::Status Overlap::Add(absl::string_view text) {
  const std::vector<TextWord> words = WordsOf(text);
  const bool whole = words.size() < kWords;
  uint64_t all = words.size();
  for (const TextWord& word : words) all = Extend(all, word.hash);
  if (!seen_.insert(all).second) {
    ++texts_;
    return absl::OkStatus();
  }
  ForEachRun(words, [&](uint64_t hash, size_t, size_t) {
    runs_.push_back({.hash = hash, .text = texts_, .whole = whole});
  });
  ++texts_;
  if (runs_.size() <= kMostRuns) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the held-out rows have more than ", kMostRuns,
                                                   " words; check fewer of them at a time"));
}

void Overlap::Finish() {
  const auto key = [](const Run& run) { return std::tie(run.hash, run.text); };
  std::sort(runs_.begin(), runs_.end(),
            [&](const Run& a, const Run& b) { return key(a) < key(b); });
  runs_.erase(std::unique(runs_.begin(), runs_.end(),
                          [&](const Run& a, const Run& b) { return key(a) == key(b); }),
              runs_.end());
  DropInstructions();

  // As many places as runs, so that a look-up reads a run or two.
  const int bits = std::max(1, static_cast<int>(std::bit_width(runs_.size())));
  shift_ = 64 - bits;
  starts_.assign((size_t{1} << bits) + 1, 0);
  for (const Run& run : runs_) ++starts_[(run.hash >> shift_) + 1];
  for (size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
}

void Overlap::DropInstructions() {
  size_t kept = 0;
  for (size_t begin = 0, end = 0; begin < runs_.size(); begin = end) {
    while (end < runs_.size() && runs_[end].hash == runs_[begin].hash) ++end;
    if (end - begin > kMostTexts && !runs_[begin].whole) continue;
    for (size_t i = begin; i < end; ++i) runs_[kept++] = runs_[i];
  }
  runs_.resize(kept);
}

std::vector<Overlap::Match> Overlap::Find(absl::string_view text) const {
  std::vector<Match> matches;
  if (runs_.empty()) return matches;
  ForEachRun(WordsOf(text), [&](uint64_t hash, size_t begin, size_t end) {
    const uint64_t place = hash >> shift_;
    for (uint32_t i = starts_[place]; i < starts_[place + 1]; ++i) {
      if (runs_[i].hash == hash)
        matches.push_back({.held_out = runs_[i].text, .words = text.substr(begin, end - begin)});
    }
  });
  // Of the runs that a held-out text shares, the first one is kept.
  std::stable_sort(matches.begin(), matches.end(),
                   [](const Match& a, const Match& b) { return a.held_out < b.held_out; });
  matches.erase(
      std::unique(matches.begin(), matches.end(),
                  [](const Match& a, const Match& b) { return a.held_out == b.held_out; }),
      matches.end());
  return matches;
}

}  // namespace sluice::cli
