#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/aligned_text.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/metaspace.h"
#include "common/tokenizer/splitter.h"

namespace sluice {

// The chain `pre_tokenizer` of a tokenizer.json. Supports Sequence, ByteLevel, Split, Metaspace,
// Digits. Without one, the text is one word.
//
// Immutable, so thread-safe.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  static absl::StatusOr<PreTokenizer> Parse(const Component& component);

  // Splits `part` of `text` into words. Metaspace, and ByteLevel with add_prefix_space, rewrite the
  // text; the words are parts of the text after that. RESOURCE_EXHAUSTED: a pattern exceeded its
  // limits.
  absl::Status Run(AlignedText* text, Span part, std::vector<Span>* words) const;

  // Whether words are encoded byte by byte in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }
  // The scanner that alone determines where words begin and end, or null.
  Scanner scanner() const {
    return steps_.size() == 1 && steps_[0].splitter ? steps_[0].splitter->scanner() : nullptr;
  }
  // Whether Run() needs to know where its text is in the original, so that the text must be
  // tracked. `rewritten` tells whether the text was rewritten before.
  bool needs_origin(bool rewritten) const {
    return looks_at_origin_ && (rewritten || rewrites_before_looking_);
  }

 private:
  struct Step {  // Exactly one field is set.
    std::optional<Splitter> splitter;
    std::optional<Metaspace> metaspace;
    bool prefix_space = false;  // Put a space in front of each piece that does not begin with one.
  };
  absl::Status AddStep(const Component& component);
  static void AddPrefixSpaces(AlignedText* text, std::vector<Span>* pieces);
  static void RunMetaspace(const Metaspace& metaspace, AlignedText* text,
                           std::vector<Span>* pieces);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  // Whether a Metaspace with kFirst asks where its piece is in the original text, and whether a
  // step before it rewrites the text.
  bool looks_at_origin_ = false, rewrites_before_looking_ = false;
};

}  // namespace sluice
