#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/testing/data.h"
#include "gtest/gtest.h"

namespace sluice::trainer {

// A folder of its own for one test.
inline std::string FreshDir() {
  const std::string dir = testing_data::TempPath(ToHex(RandomId16()));
  EXPECT_TRUE(MakeDirs(dir).ok());
  return dir;
}

// A model directory without weights: one layer, `vocab` tokens, and a head that is the embedding if
// it is `tied`.
inline ModelDir TinyModelDir(int vocab = 16, bool tied = true) {
  const std::string dir = FreshDir();
  EXPECT_TRUE(
      WriteFileAtomic(
          dir + "/config.json",
          absl::StrCat(
              R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": )",
              vocab,
              R"(, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, )"
              R"("max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": )",
              tied ? "true" : "false",
              R"(, )"
              R"("torch_dtype": "float32", "initializer_range": 0.3})"))
          .ok());
  absl::StatusOr<ModelDir> model = ReadModelDir(dir);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// The same with a mixture of experts: two layers of four experts, two for a token.
inline ModelDir TinyExpertsDir(int vocab) {
  const std::string dir = FreshDir();
  EXPECT_TRUE(
      WriteFileAtomic(
          dir + "/config.json",
          absl::StrCat(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", )",
                       R"("vocab_size": )", vocab,
                       R"(, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_experts": 4,
  "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": true,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
  "hidden_act": "silu", "tie_word_embeddings": true, "torch_dtype": "float32",
  "initializer_range": 0.3})"))
          .ok());
  absl::StatusOr<ModelDir> model = ReadModelDir(dir);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

}  // namespace sluice::trainer
