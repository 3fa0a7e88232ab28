#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// Tokens and where they come from. All lists have the same length.
struct TokenSpans {
  std::vector<int32_t> ids;
  std::vector<Span> offsets;  // Bytes of the text; {0, 0} for tokens that the post-processor added.
  struct Spaces {
    uint32_t leading = 0, trailing = 0;  // Number of spaces at the ends of the token.
  };
  std::vector<Spaces> spaces;
};

// The chain `post_processor` of a tokenizer.json. Supports Sequence, ByteLevel (which trims
// offsets) and TemplateProcessing (for one text).
//
// Immutable, so thread-safe.
class PostProcessor {
 public:
  PostProcessor() = default;
  static absl::StatusOr<PostProcessor> Parse(const Component& component);

  // The ids that templates put before and after the ids of a text.
  const std::vector<int32_t>& before() const { return before_; }
  const std::vector<int32_t>& after() const { return after_; }

  // Adds these ids and trims offsets. Without `add_special`, templates add nothing.
  void Run(absl::string_view text, bool add_special, TokenSpans* tokens) const;

 private:
  struct Step {
    bool trims = false, prefix_space = false;  // ByteLevel with trim_offsets.
    std::vector<int32_t> before, after;        // TemplateProcessing.
  };
  absl::Status AddStep(const Component& component);
  absl::Status AddTemplate(const Component& component);

  std::vector<Step> steps_;
  std::vector<int32_t> before_, after_;
};

}  // namespace sluice
