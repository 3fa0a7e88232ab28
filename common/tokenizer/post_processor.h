#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/component.h"
#include "common/tokenizer/pattern.h"

namespace sluice {

// Tokens with where they stem from.
struct TokenSpans {
  std::vector<int32_t> ids;
  std::vector<Span> offsets;  // Bytes of the text; {0, 0} of tokens that the post-processor added.
  struct Spaces {
    uint32_t leading = 0, trailing = 0;  // Characters of the token that are spaces.
  };
  std::vector<Spaces> spaces;
};

// The chain `post_processor` of a tokenizer.json: Sequence, ByteLevel (which trims offsets),
// TemplateProcessing (one text).
//
// Immutable, so thread-safe.
class PostProcessor {
 public:
  PostProcessor() = default;
  static absl::StatusOr<PostProcessor> Parse(const Component& component);

  // The ids that templates put in front of a text's own and behind them.
  const std::vector<int32_t>& before() const { return before_; }
  const std::vector<int32_t>& after() const { return after_; }

  // As above, and offsets. Without `add_special`, templates add nothing.
  void Run(absl::string_view text, bool add_special, TokenSpans* tokens) const;

 private:
  struct Step {
    bool trims = false, prefix_space = false;  // ByteLevel with trim_offsets.
    std::vector<int32_t> before, after;        // TemplateProcessing.
  };
  absl::Status Add(const Component& component);
  absl::Status AddTemplate(const Component& component);

  std::vector<Step> steps_;
  std::vector<int32_t> before_, after_;
};

}  // namespace sluice
