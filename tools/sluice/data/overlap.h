#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::cli {

// A word of a text: its bytes [begin, end), and a hash of it in lower case.
struct TextWord {
  size_t begin = 0, end = 0;
  uint64_t hash = 0;
};

// The words of a text of UTF-8: runs of letters, marks and digits, and the operators of formulas.
// In scripts that write no spaces between words (Chinese, Japanese, Thai, ..) each letter is a
// word. A text without any is one word.
std::vector<TextWord> WordsOf(absl::string_view text);

// Finds held-out texts in training data. Two texts overlap if they share 13 words in a row, and
// texts with fewer words if they have the same words. What more than 10 different held-out texts
// share is an instruction that many tasks begin with, so it counts for none of them. Of held-out
// texts with the same words the first one stands for all.
//
// Keeps 16 bytes for each word of the held-out texts, and nothing of the training data. Not
// thread-safe.
class Overlap {
 public:
  static constexpr size_t kWords = 13;
  static constexpr size_t kMostTexts = 10;
  static constexpr size_t kMostRuns = size_t{1} << 26;

  // What a held-out text, numbered by the calls of Add() from 0, shares with a text.
  struct Match {
    uint32_t held_out = 0;
    absl::string_view words;  // The first words that they share, in the text that was looked up.
  };

  // Adds a held-out text. RESOURCE_EXHAUSTED: there are more than kMostRuns runs of words.
  absl::Status Add(absl::string_view text);
  // Call it once, after all calls of Add() and before those of Find().
  void Finish();

  // The held-out texts that overlap with `text`, each once.
  std::vector<Match> Find(absl::string_view text) const;

 private:
  // A run of kWords words, or all words of a shorter text.
  struct Run {
    uint64_t hash = 0;
    uint32_t text = 0;
    bool whole = false;
  };

  void DropInstructions();

  std::vector<Run> runs_;         // By hash and text, after Finish().
  std::vector<uint32_t> starts_;  // The first run whose hash has these bits at its top.
  int shift_ = 0;                 // hash >> shift_ are these bits.
  uint32_t texts_ = 0;
  absl::flat_hash_set<uint64_t> seen_;  // Hashes of all words of a text.
};

}  // namespace sluice::cli
