#pragma once

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/aligned_text.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/metaspace.h"
#include "common/tokenizer/splitter.h"

namespace sluice {

// The chain `pre_tokenizer` of a tokenizer.json: Sequence, ByteLevel, Split, Metaspace, Digits;
// none: the text is one word.
//
// Immutable, so thread-safe.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  static absl::StatusOr<PreTokenizer> Parse(const Component& component);

  // Cuts `part` of `text` into words. It may rewrite the text (Metaspace): the words are parts of
  // what `text` is then. RESOURCE_EXHAUSTED: a pattern ran into its limits.
  absl::Status Run(AlignedText* text, Span part, std::vector<Span>* words) const;

  // Words are spelled byte by byte in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }
  // Where the words begin and end needs nothing but this scanner over the text; else null.
  Scanner scanner() const {
    return steps_.size() == 1 && steps_[0].splitter ? steps_[0].splitter->scanner() : nullptr;
  }
  // Whether Run looks at where its text lies in the original, so that a text must be tracked which
  // was `rewritten` before.
  bool needs_origin(bool rewritten) const {
    return looks_at_origin_ && (rewritten || rewrites_before_looking_);
  }

 private:
  struct Step {  // One of the three.
    std::optional<Splitter> splitter;
    std::optional<Metaspace> metaspace;
    bool prefix_space = false;  // A space in front of each piece that does not begin with one.
  };
  absl::Status Add(const Component& component);
  static void PrefixSpaces(AlignedText* text, std::vector<Span>* pieces);
  static void RunMetaspace(const Metaspace& metaspace, AlignedText* text,
                           std::vector<Span>* pieces);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool looks_at_origin_ = false, rewrites_before_looking_ = false;
};

}  // namespace sluice
