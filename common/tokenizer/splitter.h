#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/scanners.h"

namespace sluice {

// Cuts a text where a pattern matches, in one of five ways. The matches themselves become pieces
// (Isolated), go (Removed), or join a neighbour (MergedWithPrevious, MergedWithNext, Contiguous:
// matches in a row are one piece). With `invert`, what lies between the matches counts as the
// match.
//
// Immutable, so thread-safe.
class Splitter {
 public:
  enum Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

  static absl::StatusOr<Splitter> Parse(const Component& split);  // {"type": "Split", ..}
  Splitter(std::shared_ptr<const Pattern> pattern, Behavior behavior, bool invert);

  // Appends the pieces of `part` of `text`, none of them empty. RESOURCE_EXHAUSTED: the pattern ran
  // into its limits.
  absl::Status Split(absl::string_view text, Span part, std::vector<Span>* pieces) const;

  // If every piece is one that this scanner gives, the scanner; else null.
  Scanner scanner() const { return scanner_; }

 private:
  std::shared_ptr<const Pattern> pattern_;
  Behavior behavior_;
  bool invert_;
  Scanner scanner_ = nullptr;
};

}  // namespace sluice
