#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "services/rollout/core/engine/engine.h"

namespace sluice {

// Makes a request that scores `tokens`, at least two, and draws nothing. It computes all of them
// itself by prefill, without keys and values of other requests, and ends with one event, which
// ReadScores() reads. The caller sets its id and class.
inline Request MakeScoringRequest(std::vector<int32_t> tokens, float temperature) {
  const int32_t last = tokens.back();
  tokens.pop_back();
  return {.prompt = std::make_shared<const std::vector<int32_t>>(std::move(tokens)),
          .sampling = {.temperature = temperature, .max_tokens = 1, .ignore_eos = true},
          .trainable = false,
          .prompt_logprobs = true,
          .given = last};
}

// Returns the log-probs (natural log) of the tokens from the second on. They have the same bits as
// those of tokens that are drawn at this temperature.
inline std::vector<float> ReadScores(const TokenEvent& event) {
  std::vector<float> scores;
  if (event.details != nullptr) scores = event.details->prompt_logprobs;
  scores.push_back(event.logprob);
  return scores;
}

}  // namespace sluice
