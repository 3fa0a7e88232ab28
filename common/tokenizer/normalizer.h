#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/aligned_text.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/unicode_forms.h"

namespace sluice {

// The chain `normalizer` of a tokenizer.json. Supports Sequence, NFC, NFD, NFKC, NFKD, Prepend,
// Replace, Strip, Lowercase.
//
// Immutable, so thread-safe.
class Normalizer {
 public:
  Normalizer() = default;  // Changes nothing.
  static absl::StatusOr<Normalizer> Parse(const Component& component);

  bool empty() const { return steps_.empty(); }
  // RESOURCE_EXHAUSTED: a pattern exceeded its limits, or the text became larger than 256 MiB.
  absl::Status Run(AlignedText* text) const;

 private:
  struct Step {
    enum Kind { kForm, kPrepend, kReplace, kStrip, kLowercase } kind;
    UnicodeForm form = UnicodeForm::kNfc;
    std::shared_ptr<const Pattern> pattern;
    std::string content;               // kPrepend, kReplace: the new text.
    bool left = false, right = false;  // kStrip.
  };
  absl::Status AddStep(const Component& component);

  std::vector<Step> steps_;
};

// Returns the part of `text` without White_Space at the chosen ends.
Span StripSpaces(absl::string_view text, bool left, bool right);

}  // namespace sluice
