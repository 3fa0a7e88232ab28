#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/safetensors.h"
#include "common/testing/data.h"

namespace sluice {

// Sequences of different lengths, with what transformers computes for them. B is their number, T
// the greatest length.
struct ReferenceSequences {
  int64_t longest = 0;
  std::vector<std::vector<int32_t>> tokens;  // Without padding.
  const float* logits = nullptr;             // [B, T, V]
  const float* logprobs = nullptr;           // [B, T - 1]: number t is of token t + 1.
};

// Prompts with their greedy continuations.
struct ReferenceGreedy {
  std::vector<std::vector<int32_t>> prompts, continuations;
};

// A checkpoint of the shared test data with its reference.safetensors.
struct ReferenceModel {
  explicit ReferenceModel(const std::string& name)
      : dir(*ReadModelDir(testing_data::Path("models/" + name))),
        weights(*ReadWeights(dir, DType::kF32)),
        reference(*ReadSafetensors(dir.path + "/reference.safetensors")) {}

  const float* floats(const std::string& name) const {
    const int64_t i = reference.Find(name);
    SLUICE_CHECK_MSG(i >= 0, name);
    return reference.as<float>(i).data();
  }
  bool has(const std::string& name) const { return reference.Find(name) >= 0; }
  std::vector<int64_t> shape(const std::string& name) const {
    return reference.spec(reference.Find(name)).shape;
  }
  int64_t integer(const std::string& name, int64_t index) const {
    return reference.as<int64_t>(reference.Find(name))[index];
  }

  ReferenceSequences Sequences() const {
    ReferenceSequences out;
    const int64_t b = shape("input_ids")[0];
    out.longest = shape("input_ids")[1];
    for (int64_t i = 0; i < b; ++i) {
      out.tokens.emplace_back();
      for (int64_t t = 0; t < out.longest; ++t) {
        // Sequences are padded on the right.
        if (has("attention_mask") && integer("attention_mask", i * out.longest + t) == 0) break;
        out.tokens.back().push_back(
            static_cast<int32_t>(integer("input_ids", i * out.longest + t)));
      }
    }
    out.logits = floats("logits");
    out.logprobs = floats("logprobs");
    return out;
  }

  // The two kinds of reference file pad prompts on different sides.
  ReferenceGreedy Greedy() const {
    ReferenceGreedy out;
    const bool left = has("prompt_ids");
    const std::string prompts = left ? "prompt_ids" : "greedy_prompt_ids",
                      ids = left ? "greedy_ids" : "greedy_continuation_ids";
    const int64_t width = shape(prompts)[1], length = shape(ids)[1];
    for (int64_t i = 0; i < shape(prompts)[0]; ++i) {
      out.prompts.emplace_back(), out.continuations.emplace_back();
      for (int64_t t = 0; t < width; ++t) {
        const bool real =
            left ? integer("prompt_mask", i * width + t) != 0 : t < integer("greedy_prompt_len", i);
        if (real)
          out.prompts.back().push_back(static_cast<int32_t>(integer(prompts, i * width + t)));
      }
      for (int64_t t = 0; t < length; ++t)
        out.continuations.back().push_back(static_cast<int32_t>(integer(ids, i * length + t)));
    }
    return out;
  }

  ModelDir dir;
  TensorSet weights;  // Widened to fp32.
  TensorSet reference;
};

inline const std::vector<std::string>& ReferenceModelNames() {
  static const auto& names = *new std::vector<std::string>{
      "qwen3-tiny",    "qwen3-tiny-tied", "qwen3-tiny-bf16-sharded", "qwen2-tiny", "llama3-tiny",
      "qwen3moe-tiny", "stories260k"};
  return names;
}

// Returns a model's name in the form that a name of a test may have.
inline std::string TestName(std::string name) {
  for (char& c : name) {
    if (c == '-') c = '_';
  }
  return name;
}

}  // namespace sluice
