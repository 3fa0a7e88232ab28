#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/scanners.h"

namespace sluice {

// Splits a text where a pattern matches, in one of five ways. The matches become pieces themselves
// (Isolated), are removed (Removed), or join a neighbour (MergedWithPrevious, MergedWithNext;
// Contiguous: successive matches are one piece). With `invert`, the text between the matches counts
// as the match.
//
// Immutable, so thread-safe.
class Splitter {
 public:
  enum Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

  static absl::StatusOr<Splitter> Parse(const Component& split);  // Parses {"type": "Split", ..}.
  Splitter(std::shared_ptr<const Pattern> pattern, Behavior behavior, bool invert);

  // Appends the pieces of `part` of `text`; none of them is empty. RESOURCE_EXHAUSTED: the pattern
  // exceeded its limits.
  absl::Status Split(absl::string_view text, Span part, std::vector<Span>* pieces) const;

  // The scanner, if its pieces are exactly the pieces of this splitter; else null.
  Scanner scanner() const { return scanner_; }

 private:
  std::shared_ptr<const Pattern> pattern_;
  Behavior behavior_;
  bool invert_;
  Scanner scanner_ = nullptr;
};

}  // namespace sluice
