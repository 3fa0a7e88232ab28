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

// A part of an answer, or all of it.
struct AnswerPart {
  std::string text;
  // Characters of the answer's text before this part, echo included.
  uint64_t characters_before = 0;
  // The prompt's tokens, if their log-probs are asked for. The first one has none.
  std::vector<TokenEvent> prompt;
  std::vector<TokenEvent> tokens;  // Empty if the response has nothing about tokens.
  std::vector<ToolCall> calls;
  size_t calls_before = 0;  // Tool calls of the answer before this part.
  FinishReason finish = FinishReason::kNone;
};

// The fields with which all responses to one call begin.
struct ResponseHead {
  std::string id;
  int64_t created = 0;  // Unix seconds.
  std::string model;
  std::string fingerprint;  // VERSION-DIGEST of the weights.
};

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
};

// Formats OpenAI's objects for one call. `prepared` and `tokenizer` outlive it.
class Format {
 public:
  Format(const Prepared& prepared, const Tokenizer& tokenizer)
      : prepared_(prepared), tokenizer_(tokenizer) {}

  // Returns the whole response to a call that does not stream. answers[i] is the answer of index i.
  std::string Whole(const ResponseHead& head, absl::Span<const AnswerPart> answers,
                    const Usage& usage) const;

  // These return server-sent events of a stream. `first` marks the first chunk of an answer.
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

// An entry of /v1/models.
struct ModelEntry {
  std::string name, version, digest;
  int64_t created = 0;  // Unix seconds.
  uint32_t max_context = 0;
};
std::string ModelJson(const ModelEntry& model);
std::string ModelsJson(absl::Span<const ModelEntry> models);

}  // namespace sluice::rollout::http
