#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <vector>

#include "common/base/splitmix.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/settings.h"

// The batches that the benches of the trainer train on.
namespace sluice::trainer {

struct BatchShape {
  int groups = 32, prompt = 6, answer = 6;  // Tokens of each prompt and of each answer.
};

inline void AddShapeOptions(CLI::App& app, BatchShape* shape) {
  app.add_option("--groups", shape->groups, "prompts of a step, with 8 answers each")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--prompt", shape->prompt, "tokens of a prompt")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--answer", shape->answer, "tokens of an answer")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
}

// GRPO with an entropy term.
inline Settings BenchSettings(const BatchShape& shape) {
  Settings settings;
  settings.algorithm.advantage.kind = "grpo";
  settings.algorithm.loss.entropy = 0.05;
  settings.algorithm.loss.dual = std::nullopt;
  settings.algorithm.loss.veto = std::nullopt;
  settings.optimizer.lr = 1e-3;
  settings.max_response = static_cast<uint32_t>(shape.answer + 1);
  return settings;
}

// Random groups of 8 answers, whose prompts are equal with `one_prompt`.
inline std::vector<Group> MakeBatch(SplitMix64& random, int64_t version, int64_t vocab,
                                    const BatchShape& shape, bool one_prompt) {
  std::vector<Group> batch(static_cast<size_t>(shape.groups));
  for (Group& group : batch) {
    group.members.resize(8);
    for (Trajectory& t : group.members) {
      for (int i = 0; i < shape.prompt + shape.answer; ++i) {
        const bool shared = one_prompt && i < shape.prompt && &t != &group.members[0];
        t.tokens.push_back(shared ? group.members[0].tokens[i]
                                  : static_cast<int32_t>(random.Below(vocab)));
        t.mask.push_back(i >= shape.prompt);
        t.logprobs.push_back(-4.1f);
        t.versions.push_back(i >= shape.prompt ? version : -1);
      }
      t.reward = random.Uniform();
    }
  }
  return batch;
}

}  // namespace sluice::trainer
