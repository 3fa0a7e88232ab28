#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "services/rollout/core/engine/engine.h"

namespace sluice {

// A request that draws nothing: it computes `tokens`, at least two, by prefill, finds no keys and
// values of others, and ends with one event, which Scores() reads. Id and class are the caller's to
// set.
inline Request MakeScoring(std::vector<int32_t> tokens, float temperature) {
  const int32_t last = tokens.back();
  tokens.pop_back();
  return {.prompt = std::make_shared<const std::vector<int32_t>>(std::move(tokens)),
          .sampling = {.temperature = temperature, .max_tokens = 1, .ignore_eos = true},
          .trainable = false,
          .prompt_logprobs = true,
          .given = last};
}

// The log-probs of the tokens behind the first, natural log, in the bits that a draw of them at
// this temperature gives.
inline std::vector<float> Scores(const TokenEvent& event) {
  std::vector<float> scores;
  if (event.details != nullptr) scores = event.details->prompt_logprobs;
  scores.push_back(event.logprob);
  return scores;
}

}  // namespace sluice
