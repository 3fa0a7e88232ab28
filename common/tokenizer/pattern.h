#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/scanners.h"

namespace sluice {

// A range of bytes [begin, end).
struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span& o) const { return begin == o.begin && end == o.end; }
  size_t size() const { return end - begin; }
};

// The pattern of a Replace or Split: a fixed string, a regular expression, or a class of
// characters.
//
// Immutable, so thread-safe.
class Pattern {
 public:
  virtual ~Pattern() = default;

  // Parses `component`.pattern: {"String": ..} or {"Regex": ..}.
  static absl::StatusOr<std::unique_ptr<const Pattern>> Parse(const Component& component);
  static std::unique_ptr<const Pattern> String(std::string text);  // `text` must not be empty.
  // Matches each character of the category N.
  static std::unique_ptr<const Pattern> Digit();
  // Uses a hand-written scanner if `regex` is one of the well-known patterns (scanners.h), else
  // PCRE2.
  // INVALID_ARGUMENT: the pattern is over 4 KiB or not valid.
  // UNIMPLEMENTED: TranslateRegex() cannot translate it.
  static absl::StatusOr<std::unique_ptr<const Pattern>> Regex(absl::string_view regex);

  // Appends the matches in `text` (UTF-8), from left to right, without overlap. An empty match
  // directly after another match is left out. RESOURCE_EXHAUSTED: a match, depth or heap limit was
  // exceeded.
  virtual absl::Status Find(absl::string_view text, std::vector<Span>* matches) const = 0;

  // The scanner that finds the same matches, or null.
  virtual Scanner scanner() const { return nullptr; }
  // Whether the matches of `scanner` cover any text completely.
  virtual bool matches_everywhere() const { return false; }

  // Returns `text` with every match replaced by `content`. Errors as Find().
  absl::StatusOr<std::string> Replace(absl::string_view text, absl::string_view content) const;
};

}  // namespace sluice
