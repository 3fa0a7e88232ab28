#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/rollout/http/request.h"

namespace sluice::rollout::http {
class Model;

// A request with its prompts as the model reads them.
struct Prepared {
  struct Prompt {
    std::shared_ptr<const std::vector<int32_t>> ids;
    // For echo; else empty. Bytes at its end that are no whole character come with the answer.
    std::string text;
    // Where its log-probs are told: for each of `ids` the characters of `text` before it.
    std::vector<uint64_t> offsets;
  };
  ApiRequest request;
  std::vector<Prompt> prompts;
  uint64_t prompt_tokens = 0;  // Of all prompts.

  size_t answers() const { return prompts.size() * request.n; }
};

// Renders and encodes, which may take long. INVALID_ARGUMENT as Refuse() makes it: the template or
// tokenizer refuses, the prompt and max_tokens exceed the context, or a way of sampling that the
// engine does not have.
absl::StatusOr<Prepared> Prepare(ApiRequest request, const Model& model);

// The engine's requests: n for each prompt, in order, where n > 1 as members of a group; those of
// prompt p have GroupSeed(seed, p). Ids are given by Guests.
std::vector<Request> MakeRequests(const Prepared& prepared, uint64_t seed, RequestClass order);

}  // namespace sluice::rollout::http
