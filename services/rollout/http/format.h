#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/rollout/core/engine/engine.h"
#include "services/rollout/http/prepare.h"
#include "services/rollout/http/tool_calls.h"

namespace sluice {
class Tokenizer;
}  // namespace sluice

namespace sluice::rollout::http {

// What an answer grew by, or all of it.
struct AnswerPart {
  std::string text;
  uint64_t characters_before = 0;  // Of the answer's text, echo included.
  // The prompt's tokens, where their log-probs are told; the first has none.
  std::vector<TokenEvent> prompt;
  std::vector<TokenEvent> tokens;  // Empty where the response tells nothing of them.
  std::vector<ToolCall> calls;
  size_t calls_before = 0;  // Of the answer.
  FinishReason finish = FinishReason::kNone;
};

// What all responses to one call begin with.
struct ResponseHead {
  std::string id;
  int64_t created = 0;  // Unix seconds.
  std::string model;
  std::string fingerprint;  // Version and digest.
};

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
};

// Writes OpenAI's objects for one call. `prepared` and `tokenizer` outlive it.
class Format {
 public:
  Format(const Prepared& prepared, const Tokenizer& tokenizer)
      : prepared_(prepared), tokenizer_(tokenizer) {}

  // The response in one piece; the answers by index.
  std::string Whole(const ResponseHead& head, absl::Span<const AnswerPart> answers,
                    const Usage& usage) const;

  // Server-sent events. `first`: the answer's first.
  std::string Chunk(const ResponseHead& head, size_t index, const AnswerPart& part,
                    bool first) const;
  std::string UsageChunk(const ResponseHead& head, const Usage& usage) const;
  static std::string ErrorChunk(const absl::Status& status);
  static constexpr char kDone[] = "data: [DONE]\n\n";
  static constexpr char kComment[] = ": still sampling\n\n";

 private:
  const Prepared& prepared_;
  const Tokenizer& tokenizer_;
};

// Of /v1/models.
struct ModelEntry {
  std::string name, version, digest;
  int64_t created = 0;  // Unix seconds.
  uint32_t max_context = 0;
};
std::string ModelJson(const ModelEntry& model);
std::string ModelsJson(absl::Span<const ModelEntry> models);

}  // namespace sluice::rollout::http
