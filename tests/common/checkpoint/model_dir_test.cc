#include "common/checkpoint/model_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_source.h"
#include "common/testing/data.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kConfig[] =
    R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 16, "hidden_size": 8, )"
    R"("intermediate_size": 12,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, )"
    R"("max_position_embeddings": 32,
    "tie_word_embeddings": true, "eos_token_id": 2, "torch_dtype": "float32"})";

class ModelDirTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(testing::TempDir(), "/model-", ToHex(RandomId16()).substr(0, 8));
    source_ = absl::StrCat(root_, "/source");
    ASSERT_TRUE(MakeDirs(source_).ok());
    Write("config.json", kConfig);
  }
  void TearDown() override { (void)RemoveTree(root_); }

  void Write(const std::string& name, absl::string_view bytes) {
    ASSERT_TRUE(WriteFileAtomic(absl::StrCat(source_, "/", name), bytes).ok());
  }
  // Stores `tensors`, all of them F32, as a file of the model.
  void WriteTensors(const std::string& name, const TensorSet& tensors) {
    ASSERT_TRUE(WriteSafetensors(absl::StrCat(source_, "/", name), tensors).ok());
  }

  ModelDir Read() {
    auto dir = ReadModelDir(source_);
    EXPECT_TRUE(dir.ok()) << dir.status();
    return *std::move(dir);
  }
  std::string WeightsRefusal(absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = ReadWeights(Read(), DType::kF32).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }
  std::string DirRefusal() { return std::string(ReadModelDir(source_).status().message()); }

  std::string root_, source_;
};

// Returns a zeroed set that has the specs of `set` after `change` was applied to them.
template <typename Change>
TensorSet Changed(const TensorSet& set, Change change) {
  std::vector<TensorSpec> specs(set.specs().begin(), set.specs().end());
  change(&specs);
  return *TensorSet::Create(specs);
}

TEST_F(ModelDirTest, StopIdsComeFromTheGenerationConfigThenFromTheConfig) {
  EXPECT_THAT(Read().stop_ids, ElementsAre(2));
  Write("generation_config.json", R"({"eos_token_id": [1, 3]})");
  EXPECT_THAT(Read().stop_ids, ElementsAre(1, 3));

  Write("generation_config.json", R"({"eos_token_id": 4})");
  EXPECT_THAT(Read().stop_ids, ElementsAre(4));

  Write("generation_config.json", R"({"eos_token_id": 16})");
  EXPECT_THAT(DirRefusal(), HasSubstr("end token 16 is not below vocab_size 16"));

  Write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(DirRefusal(), HasSubstr("generation_config.json: eos_token_id"));
}

TEST_F(ModelDirTest, TheChatTemplateIsItsOwnFileOrTheTokenizersOrNone) {
  EXPECT_EQ(Read().chat_template, "");
  EXPECT_EQ(Read().tokenizer_path, "");

  Write("tokenizer.json", "{}");
  Write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_EQ(Read().chat_template, "one");
  EXPECT_EQ(Read().tokenizer_path, source_ + "/tokenizer.json");
  EXPECT_EQ(Read().tokenizer_config_path, source_ + "/tokenizer_config.json");

  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", )"
        R"("template": "listed"}]})");
  EXPECT_EQ(Read().chat_template, "listed");

  Write("chat_template.jinja", "own\n");
  EXPECT_EQ(Read().chat_template, "own\n");
  ASSERT_TRUE(RemoveTree(source_ + "/chat_template.jinja").ok());

  Write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(DirRefusal(), HasSubstr("tokenizer_config.json: chat_template"));
}

TEST_F(ModelDirTest, AMissingDirectoryConfigOrWeightFileIsNotFound) {
  EXPECT_EQ(ReadModelDir(root_ + "/nowhere").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(WeightsRefusal(absl::StatusCode::kNotFound),
              HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  ASSERT_TRUE(RemoveTree(source_ + "/config.json").ok());
  EXPECT_EQ(ReadModelDir(source_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelDirTest, AFifoInPlaceOfAnyOfItsFilesIsRefusedAtOnce) {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json",
                           "chat_template.jinja", "model.safetensors"}) {
    const std::string path = absl::StrCat(source_, "/", name);
    ASSERT_TRUE(RemoveTree(path).ok());
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);

    const auto dir = ReadModelDir(source_);
    const absl::Status status = dir.ok() ? ReadWeights(*dir, DType::kF32).status() : dir.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(path, " is a FIFO")));

    ASSERT_TRUE(RemoveTree(path).ok());
    Write("config.json", kConfig);
  }
}

TEST_F(ModelDirTest, WeightsThatDoNotFitTheConfigAreRefused) {
  const TensorSet good = *InitWeights(Read().config, 1);

  WriteTensors("model.safetensors", Changed(good, [](auto* specs) { specs->pop_back(); }));
  EXPECT_THAT(WeightsRefusal(), HasSubstr("no file holds tensor model.norm.weight"));

  WriteTensors("model.safetensors", Changed(good, [](auto* specs) {
                 specs->push_back({"extra.weight", DType::kF32, {1}});
               }));
  EXPECT_THAT(WeightsRefusal(),
              HasSubstr("tensor extra.weight is not a parameter of this Qwen3ForCausalLM"));

  WriteTensors("model.safetensors",
               Changed(good, [](auto* specs) { specs->back().shape = {4, 2}; }));
  EXPECT_THAT(
      WeightsRefusal(),
      HasSubstr("tensor model.norm.weight is F32 [4, 2], but config.json asks for F32 [8]"));

  WriteTensors("model.safetensors",
               Changed(good, [](auto* specs) { specs->back().dtype = DType::kI32; }));
  EXPECT_THAT(WeightsRefusal(),
              HasSubstr("tensor model.norm.weight is I32, but weights must be F32, F16 or BF16"));

  // Some tools store these two, although the model does not need them.
  WriteTensors(
      "model.safetensors", Changed(good, [](auto* specs) {
        specs->push_back({"lm_head.weight", DType::kF32, {16, 8}});
        specs->push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {2}});
      }));

  EXPECT_TRUE(ReadWeights(Read(), DType::kF32).ok());
}

TEST_F(ModelDirTest, EachWeightIsHandedOverAsItIsStored) {
  const TensorSet good = *InitWeights(Read().config, 1);
  const TensorSet mixed = Changed(good, [](auto* specs) { specs->back().dtype = DType::kBF16; });
  WriteTensors("model.safetensors", mixed);
  EXPECT_EQ(*ReadWeightSpecs(Read()),
            std::vector<TensorSpec>(mixed.specs().begin(), mixed.specs().end()));

  std::vector<TensorSpec> seen;
  ASSERT_TRUE(ReadEachWeight(Read(), [&](const TensorSpec& spec, const std::byte* data) {
                const size_t i = mixed.Find(spec.name);
                EXPECT_EQ(std::memcmp(data, mixed.data(i), mixed.bytes(i)), 0) << spec.name;
                seen.push_back(spec);
              }).ok());
  EXPECT_EQ(seen, *ReadWeightSpecs(Read()));
}

TEST_F(ModelDirTest, ANumberThatIsNotFiniteIsRefusedWithItsPlace) {
  TensorSet weights = *InitWeights(Read().config, 1);
  float& victim = weights.as<float>(weights.Find("model.layers.0.mlp.up_proj.weight"))[17];

  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    victim = bad;
    WriteTensors("model.safetensors", weights);
    EXPECT_THAT(WeightsRefusal(), HasSubstr("tensor model.layers.0.mlp.up_proj.weight: element 17 "
                                            "is infinite or NaN as F32"));
  }

  victim = 1e20f;  // Finite as F32, but not as F16.
  WriteTensors("model.safetensors", weights);

  EXPECT_TRUE(ReadWeights(Read(), DType::kF32).ok());
  EXPECT_THAT(std::string(ReadWeights(Read(), DType::kF16).status().message()),
              HasSubstr("element 17 is infinite or NaN as F16"));
}

TEST_F(ModelDirTest, ShardsAreReadByTheirIndexAndHeldToIt) {
  const TensorSet good = *InitWeights(Read().config, 1);
  std::vector<size_t> low, high;
  std::string map;
  for (size_t i = 0; i < good.size(); ++i) {
    (i < 5 ? low : high).push_back(i);
    absl::StrAppend(&map, i == 0 ? "" : ", ", "\"", good.spec(i).name, "\": \"",
                    i < 5 ? "low" : "high", ".safetensors\"");
  }

  ASSERT_TRUE(WriteSafetensors(source_ + "/low.safetensors", SetSource(&good), low, {}).ok());
  ASSERT_TRUE(WriteSafetensors(source_ + "/high.safetensors", SetSource(&good), high, {}).ok());

  const auto index = [&](const std::string& weight_map) {
    Write("model.safetensors.index.json", absl::StrCat("{\"weight_map\": {", weight_map, "}}"));
  };
  index(map);
  EXPECT_EQ(ReadWeights(Read(), DType::kF32)->buffer(), good.buffer());

  index(absl::StrCat(map, ", \"ghost\": \"low.safetensors\""));
  EXPECT_THAT(WeightsRefusal(), HasSubstr("low.safetensors: lacks tensor ghost"));

  index(map.substr(map.find(", ") + 2));
  EXPECT_THAT(WeightsRefusal(),
              HasSubstr("low.safetensors: holds tensor model.embed_tokens.weight, which "
                        "model.safetensors.index.json does not place there"));

  index("\"a\": \"../low.safetensors\"");
  EXPECT_THAT(WeightsRefusal(), HasSubstr("\"../low.safetensors\" is not a plain name"));

  index("\"a\": \"missing.safetensors\"");
  EXPECT_THAT(WeightsRefusal(absl::StatusCode::kNotFound), HasSubstr("missing.safetensors"));

  index("\"a\": 3");
  EXPECT_THAT(WeightsRefusal(), HasSubstr("a has no file name in weight_map"));
}

TEST_F(ModelDirTest, AWrittenDirectoryReadsBackAndEqualWeightsMakeEqualBytes) {
  Write("tokenizer.json", "{\"a\": 1}");
  Write("generation_config.json", R"({"eos_token_id": [1, 3]})");
  const ModelDir source = Read();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TensorSet weights = *InitWeights(source.config, 7, dtype);
    const std::string one = absl::StrCat(root_, "/one", DTypeName(dtype)),
                      two = absl::StrCat(root_, "/two", DTypeName(dtype));
    ASSERT_TRUE(WriteModelDir(one, source, weights).ok());
    const auto dir = ReadModelDir(one);
    ASSERT_TRUE(dir.ok()) << dir.status();

    EXPECT_EQ(dir->config.dtype, dtype);
    EXPECT_THAT(dir->stop_ids, ElementsAre(1, 3));

    const TensorSet read = *ReadWeights(*dir, dtype);
    EXPECT_EQ(read.buffer(), weights.buffer());
    ASSERT_TRUE(WriteModelDir(two, *dir, read).ok());

    const std::vector<std::string> names = *ListDir(one);
    EXPECT_THAT(names, ElementsAre("config.json", "generation_config.json", "model.safetensors",
                                   "tokenizer.json"));
    EXPECT_EQ(*ListDir(two), names);

    for (const std::string& name : names) {
      EXPECT_EQ(*ReadFile(absl::StrCat(one, "/", name)), *ReadFile(absl::StrCat(two, "/", name)))
          << name;
    }
  }
}

TEST_F(ModelDirTest, AnExistingDirectoryIsNotWrittenOverAndAFailureLeavesNothing) {
  const ModelDir source = Read();
  const TensorSet weights = *InitWeights(source.config, 7);
  EXPECT_EQ(WriteModelDir(source_, source, weights).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(
      WriteModelDir(root_ + "/out", source, *TensorSet::Create({{"a", DType::kI64, {1}}})).ok());
  EXPECT_THAT(*ListDir(root_), ElementsAre("source"));
}

TEST_F(ModelDirTest, SharedModelsAreReadAndWrittenAsTheyWere) {
  SLUICE_NEEDS_TEST_DATA("models");
  const std::string models = testing_data::Path("models");
  const std::vector<std::pair<std::string, int64_t>> supported = {
      {"qwen3-tiny", 197248},  {"qwen3-tiny-tied", 123328}, {"qwen3-tiny-bf16-sharded", 197248},
      {"llama3-tiny", 123200}, {"qwen2-tiny", 98880},       {"qwen3moe-tiny", 173440},
      {"stories260k", 260032}};

  for (const auto& [name, parameters] : supported) {
    const auto dir = ReadModelDir(absl::StrCat(models, "/", name));
    ASSERT_TRUE(dir.ok()) << dir.status();
    EXPECT_EQ(dir->config.NumParameters(), parameters);
    const auto weights = ReadWeights(*dir, dir->config.dtype);
    ASSERT_TRUE(weights.ok()) << weights.status();

    const std::string copy = absl::StrCat(root_, "/", name);
    ASSERT_TRUE(WriteModelDir(copy, *dir, *weights).ok());
    EXPECT_EQ(ReadWeights(*ReadModelDir(copy), dir->config.dtype)->buffer(), weights->buffer());
  }

  EXPECT_THAT(ReadModelDir(models + "/stories260k")->stop_ids, ElementsAre(1, 2));
}

}  // namespace
}  // namespace sluice
