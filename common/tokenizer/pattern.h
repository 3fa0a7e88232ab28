#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/scanners.h"

namespace sluice {

// A half-open range of bytes.
struct Span {
  size_t begin = 0, end = 0;
  bool operator==(const Span& o) const { return begin == o.begin && end == o.end; }
  size_t size() const { return end - begin; }
};

// What a Replace or Split looks for: a fixed string, a regular expression, or a class of
// characters.
//
// Immutable, so thread-safe.
class Pattern {
 public:
  virtual ~Pattern() = default;

  // `component`.pattern: {"String": ..} or {"Regex": ..}.
  static absl::StatusOr<std::unique_ptr<const Pattern>> Parse(const Component& component);
  static std::unique_ptr<const Pattern> String(std::string text);  // Not empty.
  // Each character of the category N.
  static std::unique_ptr<const Pattern> Digit();
  // A scanner of ours where `regex` is one of the well-known patterns (scanners.h), else PCRE2.
  // INVALID_ARGUMENT: over 4 KiB, or no valid pattern. UNIMPLEMENTED: TranslateRegex has no form
  // for it.
  static absl::StatusOr<std::unique_ptr<const Pattern>> Regex(absl::string_view regex);

  // Appends the matches in `text` (UTF-8), left to right, none overlapping; an empty one never
  // directly behind another. RESOURCE_EXHAUSTED: the match, depth or heap limit was reached.
  virtual absl::Status Find(absl::string_view text, std::vector<Span>* matches) const = 0;

  // The scanner that finds the same, or null.
  virtual Scanner scanner() const { return nullptr; }
  // Whether the matches of `scanner` cover any text.
  virtual bool matches_everywhere() const { return false; }

  // `text` with every match replaced by `content`.
  absl::StatusOr<std::string> Replace(absl::string_view text, absl::string_view content) const;
};

}  // namespace sluice
