#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_set.h"
#include "nlohmann/json.hpp"

namespace sluice {

inline const std::vector<std::string> kAllAdapterModules = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

// Returns the name of the weight that module `name` of `layer` adapts.
inline std::string AdaptedWeight(int64_t layer, const std::string& name) {
  const bool mlp = name == "gate_proj" || name == "up_proj" || name == "down_proj";
  return "model.layers." + std::to_string(layer) + (mlp ? ".mlp." : ".self_attn.") + name;
}

inline nlohmann::json AdapterConfig(int64_t rank, double alpha,
                                    const std::vector<std::string>& modules) {
  return {{"peft_type", "LORA"},    {"r", rank},
          {"lora_alpha", alpha},    {"target_modules", modules},
          {"bias", "none"},         {"use_rslora", false},
          {"inference_mode", true}, {"task_type", "CAUSAL_LM"}};
}

// Returns random matrices A and B for the modules of every layer.
inline TensorSet AdapterTensors(const ModelConfig& config, int64_t rank,
                                const std::vector<std::string>& modules, uint64_t seed) {
  const std::vector<TensorSpec> parameters = config.Parameters(DType::kF32);
  std::vector<TensorSpec> specs;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const std::string& module : modules) {
      for (const TensorSpec& spec : parameters) {
        if (spec.name != AdaptedWeight(layer, module) + ".weight") continue;
        const std::string name = "base_model.model." + AdaptedWeight(layer, module);
        specs.push_back({name + ".lora_A.weight", DType::kF32, {rank, spec.shape[1]}});
        specs.push_back({name + ".lora_B.weight", DType::kF32, {spec.shape[0], rank}});
      }
    }
  }

  TensorSet set = *TensorSet::Create(specs);
  SplitMix64 random(seed);
  for (size_t i = 0; i < set.size(); ++i) {
    float* const numbers = reinterpret_cast<float*>(set.data(i));
    for (int64_t j = 0; j < set.elements(i); ++j)
      numbers[j] = static_cast<float>(random.Uniform() - 0.5) * 0.3f;
  }
  return set;
}

inline void WriteAdapter(const std::string& dir, const nlohmann::json& config,
                         const TensorSet& tensors) {
  std::filesystem::create_directories(dir);
  SLUICE_CHECK(WriteFileAtomic(dir + "/adapter_config.json", config.dump()).ok());
  SLUICE_CHECK(WriteSafetensors(dir + "/adapter_model.safetensors", tensors).ok());
}

// Returns the weights with W + scale B A in place of every adapted matrix W.
inline TensorSet MergeAdapter(const TensorSet& weights, const TensorSet& adapter, double scale) {
  TensorSet merged = weights;
  for (size_t i = 0; i < merged.size(); ++i) {
    const std::string name =
        "base_model.model." + merged.spec(i).name.substr(0, merged.spec(i).name.rfind(".weight"));
    const int64_t a = adapter.Find(name + ".lora_A.weight"),
                  b = adapter.Find(name + ".lora_B.weight");
    if (a < 0 || merged.spec(i).dtype != DType::kF32) continue;
    const float* down = reinterpret_cast<const float*>(adapter.data(static_cast<size_t>(a)));
    const float* up = reinterpret_cast<const float*>(adapter.data(static_cast<size_t>(b)));
    float* w = reinterpret_cast<float*>(merged.data(i));
    const int64_t rank = adapter.spec(static_cast<size_t>(a)).shape[0],
                  in = merged.spec(i).shape[1], out = merged.spec(i).shape[0];
    for (int64_t n = 0; n < out; ++n) {
      for (int64_t k = 0; k < in; ++k) {
        double sum = 0;
        for (int64_t j = 0; j < rank; ++j)
          sum += static_cast<double>(up[n * rank + j]) * down[j * in + k];
        w[n * in + k] += static_cast<float>(scale * sum);
      }
    }
  }
  return merged;
}

}  // namespace sluice
