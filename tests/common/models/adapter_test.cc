#include "common/models/adapter.h"

#include <cmath>
#include <limits>

#include "common/checkpoint/init.h"
#include "common/models/decode_model.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/models/adapter_files.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns a config with sizes that no panel or vector width divides.
ModelConfig SmallConfig() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.vocab_size = 40;
  config.hidden_size = 36;
  config.intermediate_size = 50;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 10;
  config.max_context = 64;
  config.qk_norm = true;
  config.initializer_range = 0.3;
  return config;
}

class AdapterTest : public testing::Test {
 protected:
  ~AdapterTest() override { std::filesystem::remove_all(dir_); }

  // Writes and reads an adapter with a scale of 2, as alpha is twice the rank.
  std::shared_ptr<const Adapter> Make(const std::string& name, int64_t rank,
                                      const std::vector<std::string>& modules, uint64_t seed) {
    WriteAdapter(dir_ + name, AdapterConfig(rank, 2.0 * static_cast<double>(rank), modules),
                 AdapterTensors(config_, rank, modules, seed));
    auto adapter = Adapter::Read(dir_ + name, config_);
    SLUICE_CHECK_MSG(adapter.ok(), adapter.status().ToString());
    return *adapter;
  }

  // Returns the error of Read() for an adapter of q_proj with rank 3, after `config` and `tensors`
  // have changed its files; "taken" if there is none.
  std::string Refusal(
      const std::function<void(nlohmann::json*)>& config,
      const std::function<TensorSet(TensorSet)>& tensors = [](TensorSet t) { return t; }) {
    nlohmann::json json = AdapterConfig(3, 6, {"q_proj"});
    config(&json);
    WriteAdapter(dir_ + "bad", json, tensors(AdapterTensors(config_, 3, {"q_proj"}, 1)));
    const auto adapter = Adapter::Read(dir_ + "bad", config_);
    return adapter.ok() ? "taken" : std::string(adapter.status().message());
  }

  const ModelConfig config_ = SmallConfig();
  const std::string dir_ = testing_data::TempPath("adapter/");
};

// Returns the logits of three sequences of 20 tokens, each with its adapter or none.
std::vector<std::vector<float>> Logits(const ModelConfig& config, const TensorSet& weights,
                                       const std::vector<const Adapter*>& adapters,
                                       int threads = 1) {
  auto model = *DecodeModel::Create(
      config, &weights,
      {.blocks = static_cast<int>(adapters.size()), .max_context = 32, .threads = threads});
  std::vector<std::vector<int32_t>> blocks;
  std::vector<DecodeModel::Row> rows;
  for (size_t i = 0; i < adapters.size(); ++i) {
    blocks.push_back({static_cast<int32_t>(i)});
    for (int32_t p = 0; p < 20; ++p) {
      rows.push_back({.table = static_cast<int32_t>(i),
                      .position = p,
                      .token = (p * 7 + 3) % 40,
                      .want_logits = true,
                      .adapter = adapters[i]});
    }
  }

  const std::vector<absl::Span<const int32_t>> tables(blocks.begin(), blocks.end());
  std::vector<float> all(rows.size() * static_cast<size_t>(config.vocab_size));
  model->Step(rows, tables, all.data());

  std::vector<std::vector<float>> logits;
  const auto size = static_cast<ptrdiff_t>(all.size() / adapters.size());
  for (size_t i = 0; i < adapters.size(); ++i)
    logits.emplace_back(all.begin() + static_cast<ptrdiff_t>(i) * size,
                        all.begin() + static_cast<ptrdiff_t>(i + 1) * size);
  return logits;
}

double Worst(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

TEST_F(AdapterTest, ARowWithAnAdapterIsThatOfMergedWeightsAndOneWithoutKeepsItsBits) {
  const TensorSet weights = *InitWeights(config_, 1);
  const auto all = Make("all", 5, kAllAdapterModules, 2),
             two = Make("two", 3, {"v_proj", "down_proj"}, 3);
  const std::vector<float> plain = Logits(config_, weights, {nullptr})[0];

  for (const int threads : {1, 2}) {
    const auto mixed = Logits(config_, weights, {all.get(), nullptr, two.get()}, threads);
    EXPECT_EQ(mixed[1], plain) << "in bits";
    EXPECT_EQ(mixed[0], Logits(config_, weights, {all.get()})[0])
        << "in bits: the other sequences of the step change nothing";

    EXPECT_LT(
        Worst(mixed[0],
              Logits(config_,
                     MergeAdapter(weights, AdapterTensors(config_, 5, kAllAdapterModules, 2), 2),
                     {nullptr})[0]),
        2e-4);
    EXPECT_LT(Worst(mixed[2],
                    Logits(config_,
                           MergeAdapter(weights,
                                        AdapterTensors(config_, 3, {"v_proj", "down_proj"}, 3), 2),
                           {nullptr})[0]),
              2e-4);

    // The adapters change much more than that.
    EXPECT_GT(Worst(mixed[0], plain), 0.5);
    EXPECT_GT(Worst(mixed[2], plain), 0.05);
  }
}

TEST_F(AdapterTest, AModelInBf16TakesOneToo) {
  const auto all = Make("all", 5, kAllAdapterModules, 2);
  const TensorSet narrow = *InitWeights(config_, 1, DType::kBF16);
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < narrow.size(); ++i)
    specs.push_back({narrow.spec(i).name, DType::kF32, narrow.spec(i).shape});
  TensorSet wide = *TensorSet::Create(specs);
  for (size_t i = 0; i < wide.size(); ++i)
    ASSERT_TRUE(
        ConvertElements(DType::kBF16, narrow.data(i), DType::kF32, wide.data(i), wide.elements(i))
            .ok());

  const auto mixed = Logits(config_, narrow, {all.get(), nullptr});
  EXPECT_EQ(mixed[1], Logits(config_, narrow, {nullptr})[0]) << "in bits";

  const std::vector<float> merged =
      Logits(config_, MergeAdapter(wide, AdapterTensors(config_, 5, kAllAdapterModules, 2), 2),
             {nullptr})[0];
  // The bf16 model rounds what it multiplies, so compare the error with the adapter's effect.
  EXPECT_LT(Worst(mixed[0], merged), 0.1 * Worst(mixed[0], mixed[1]));
}

TEST_F(AdapterTest, TheScaleIsAlphaOverTheRankOrItsRoot) {
  EXPECT_EQ(Make("plain", 4, {"q_proj"}, 1)->scale(), 2);

  nlohmann::json config = AdapterConfig(4, 8, {"q_proj"});
  config["use_rslora"] = true;
  WriteAdapter(dir_ + "root", config, AdapterTensors(config_, 4, {"q_proj"}, 1));
  const auto root = Adapter::Read(dir_ + "root", config_);
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ((*root)->scale(), 4);
  EXPECT_NE((*root)->digest(), Make("plain", 4, {"q_proj"}, 1)->digest());

  ModelConfig other = config_;
  other.hidden_size = 72;
  EXPECT_TRUE((*root)->Fits(config_));
  EXPECT_FALSE((*root)->Fits(other));
}

TEST_F(AdapterTest, SettingsThatChangeWhatIsComputedAreRefusedByName) {
  const auto with = [&](const char* key, nlohmann::json value) {
    return Refusal([&](nlohmann::json* json) { (*json)[key] = std::move(value); });
  };

  EXPECT_EQ(with("modules_to_save", nullptr), "taken");
  EXPECT_EQ(with("peft_version", "0.18.0"), "taken");
  EXPECT_EQ(with("rank_pattern", nlohmann::json::object()), "taken");

  EXPECT_THAT(with("peft_type", "IA3"),
              HasSubstr("peft_type \"IA3\" is not in this build; it has LORA"));
  EXPECT_THAT(with("use_dora", true), HasSubstr("use_dora true is not in this build"));
  EXPECT_THAT(with("modules_to_save", {"lm_head"}), HasSubstr("modules_to_save"));
  EXPECT_THAT(with("rank_pattern", {{"q_proj", 4}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(with("bias", "all"),
              HasSubstr("bias \"all\" is not in this build; it has only \"none\"; merge"));
  EXPECT_THAT(with("init_lora_weights", "pissa"), HasSubstr("init_lora_weights \"pissa\""));
  EXPECT_THAT(with("target_modules", {"q_proj", "lm_head"}),
              HasSubstr("\"lm_head\" is none of q_proj"));
  EXPECT_THAT(with("target_modules", "all-linear"), HasSubstr("give a list"));
  EXPECT_THAT(with("something_new", 3), HasSubstr("something_new 3 is not in this build"));

  EXPECT_THAT(with("r", 0), HasSubstr("r is 0; wanted: 1 to 512"));
  EXPECT_THAT(with("r", 1000000), HasSubstr("wanted: 1 to 512"));
  EXPECT_THAT(with("r", 2.5), HasSubstr("r is 2.5"));
  EXPECT_THAT(with("lora_alpha", "x"), HasSubstr("lora_alpha is \"x\""));
  EXPECT_THAT(with("lora_alpha", 0), HasSubstr("lora_alpha is 0; wanted: a number other than 0"));

  for (const char* key : {"peft_type", "r", "lora_alpha", "target_modules"}) {
    EXPECT_THAT(Refusal([&](nlohmann::json* json) { json->erase(key); }),
                HasSubstr(std::string(key) + " is missing"));
  }
  EXPECT_THAT(Refusal([](nlohmann::json* json) { *json = nlohmann::json::array(); }),
              HasSubstr("is not a JSON object"));
}

TEST_F(AdapterTest, ASettingThatSelectsLayersOrModulesIsRefusedWithTheWayAroundIt) {
  const auto with = [&](const char* key, nlohmann::json value) {
    return Refusal([&](nlohmann::json* json) { (*json)[key] = std::move(value); });
  };

  EXPECT_THAT(
      with("layers_to_transform", {0}),
      HasSubstr("layers_to_transform [0] is not in this build; merge the adapter into its model"));
  EXPECT_THAT(with("layers_to_transform", 0), HasSubstr("merge the adapter into its model"));

  for (const auto& [key, value] : {std::pair("exclude_modules", nlohmann::json({"o_proj"})),
                                   std::pair("target_modules", nlohmann::json(".*[qv]_proj"))}) {
    EXPECT_THAT(with(key, value),
                AllOf(HasSubstr(key), HasSubstr("as target_modules if the adapter changes these "
                                                "modules in every layer; else merge")));
  }
}

TEST_F(AdapterTest, AScaleThatFp32CannotHoldIsRefusedWithWhatMakesIt) {
  const auto alpha = [&](double value) {
    return Refusal([&](nlohmann::json* json) { (*json)["lora_alpha"] = value; });
  };

  EXPECT_THAT(
      alpha(1e300),
      HasSubstr(
          "lora_alpha 1e+300 with r 3 makes a scale of 3.33333e+299, which no fp32 number holds"));
  EXPECT_THAT(alpha(-1e300), HasSubstr("no fp32 number"));
  EXPECT_THAT(alpha(1e-300), HasSubstr("no fp32 number"));
  EXPECT_EQ(alpha(1e30), "taken");

  EXPECT_THAT(Refusal([](nlohmann::json* json) { (*json)["lora_alpha"] = 3e30; },
                      [](TensorSet tensors) {
                        const auto b = static_cast<size_t>(tensors.Find(
                            "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"));
                        reinterpret_cast<float*>(tensors.data(b))[7] = 1e10f;
                        return tensors;
                      }),
              HasSubstr("layers.1.self_attn.q_proj.lora_B.weight[7] is 1e+10, and its product "
                        "with the scale 1e+30 is not finite"));
}

TEST_F(AdapterTest, FilesThatDoNotFitAreRefusedWithTheTensor) {
  const auto same = [](nlohmann::json*) {};
  const std::string first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

  EXPECT_THAT(Refusal([](nlohmann::json* json) { (*json)["r"] = 4; }),
              AllOf(HasSubstr(first), HasSubstr("F32 [3, 36]"), HasSubstr("F32 [4, 36]")));
  EXPECT_THAT(
      Refusal([](nlohmann::json* json) { (*json)["target_modules"] = {"q_proj", "k_proj"}; }),
      HasSubstr("k_proj.lora_A.weight is missing"));
  EXPECT_THAT(
      Refusal(same, [&](TensorSet) { return AdapterTensors(config_, 3, {"q_proj", "o_proj"}, 1); }),
      HasSubstr("o_proj.lora_A.weight does not belong to target_modules"));

  EXPECT_THAT(Refusal(same,
                      [&](TensorSet tensors) {
                        reinterpret_cast<float*>(
                            tensors.data(static_cast<size_t>(tensors.Find(first))))[5] =
                            std::numeric_limits<float>::quiet_NaN();
                        return tensors;
                      }),
              HasSubstr(first + "[5] is nan, not finite"));

  ModelConfig deeper = config_;
  deeper.num_layers = 3;
  (void)Make("good", 3, {"q_proj"}, 1);
  EXPECT_THAT(std::string(Adapter::Read(dir_ + "good", deeper).status().message()),
              HasSubstr("layers.2.self_attn.q_proj.lora_A.weight is missing"));

  EXPECT_FALSE(Adapter::Read(dir_ + "nowhere", config_).ok());
  ASSERT_TRUE(
      WriteFileAtomic(dir_ + "bad/adapter_model.safetensors", "not a file of tensors").ok());
  EXPECT_THAT(std::string(Adapter::Read(dir_ + "bad", config_).status().message()),
              HasSubstr("adapter_model.safetensors"));
  ASSERT_TRUE(WriteFileAtomic(dir_ + "bad/adapter_config.json", std::string(5000, '[')).ok());
  EXPECT_THAT(std::string(Adapter::Read(dir_ + "bad", config_).status().message()),
              HasSubstr("adapter_config.json"));
}

}  // namespace
}  // namespace sluice
