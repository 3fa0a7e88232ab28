#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/rollout/http/request.h"

namespace sluice::rollout::http {
class Model;

// A request whose prompts are token ids.
struct Prepared {
  struct Prompt {
    std::shared_ptr<const std::vector<int32_t>> ids;
    // The prompt's text for echo; else empty. Bytes at its end that are not a whole character are
    // sent with the answer.
    std::string text;
    // If its log-probs are asked for: for each of `ids` the number of characters of `text` before
    // it.
    std::vector<uint64_t> offsets;
  };
  ApiRequest request;
  std::vector<Prompt> prompts;
  uint64_t prompt_tokens = 0;  // Tokens of all prompts.

  size_t answers() const { return prompts.size() * request.n; }
};

// Renders and encodes the prompts, which may take long. INVALID_ARGUMENT, made by Refuse(): the
// template or the tokenizer refuses, prompt and max_tokens exceed the context, or the engine does
// not support a sampling setting.
absl::StatusOr<Prepared> Prepare(ApiRequest request, const Model& model);

// Makes the engine's requests: n for each prompt, in order. If n > 1 they are members of one group.
// The seed of those of prompt p is GroupSeed(seed, p). Guests sets the ids.
std::vector<Request> MakeRequests(const Prepared& prepared, uint64_t seed, RequestClass order);

}  // namespace sluice::rollout::http
