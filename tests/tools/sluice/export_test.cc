#include "tools/sluice/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "common/models/adapter.h"
#include "services/trainer/core/checkpoint.h"
#include "services/trainer/core/lineage.h"
#include "tests/services/trainer/tiny_model.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Writes checkpoints of a model that came in bf16. bf16 cannot represent its fp32 parameters.
class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    for (const TensorSpec& spec : parameters_.specs()) types_[spec.name] = DType::kBF16;
    Write(dir_, 9, 1);
    Write(dir_, 10, 1);
  }

  ~ExportTest() override { (void)RemoveTree(dir_); }

  // Writes the checkpoint of version (incarnation, number) in `dir`.
  void Write(const std::string& dir, int64_t number, int64_t incarnation) {
    trainer::CheckpointStore store({.dir = dir, .source = model_, .model_types = types_});
    trainer::CheckpointContents contents{.model = std::make_shared<SetSource>(&parameters_),
                                         .optimizer = std::make_shared<SetSource>(&moments_)};
    contents.state.version = {incarnation, number};
    contents.state.ledger_hash = trainer::FirstLedgerHash();
    for (int64_t k = 0; k < number; ++k) {
      contents.state.ledger_hash = trainer::NextLedgerHash(contents.state.ledger_hash, k, "");
    }
    const auto written = store.Write(contents);
    EXPECT_TRUE(written.ok()) << written.status();
  }

  // Returns the parameters, converted to `dtype`.
  TensorSet ParametersIn(DType dtype) {
    TensorSet set = *TensorSet::Create(model_.config.Parameters(dtype));
    EXPECT_TRUE(ConvertTensors(parameters_, &set).ok());
    return set;
  }

  const std::string dir_ = trainer::FreshDir();
  const ModelDir model_ = trainer::TinyModelDir();
  const TensorSet parameters_ = *InitWeights(model_.config, 3);
  const TensorSet moments_ = *TensorSet::Create({{"m.x", DType::kF32, {2}}});
  std::map<std::string, DType> types_;
  std::vector<std::string> unreadable_;
};

TEST_F(ExportTest, AFolderOfCheckpointsIsToldFromOneCheckpointAndFromAnyOtherFolder) {
  EXPECT_TRUE(HoldsCheckpoints(dir_));
  EXPECT_FALSE(trainer::IsCheckpoint(dir_));
  EXPECT_TRUE(trainer::IsCheckpoint(dir_ + "/step-9"));
  EXPECT_FALSE(HoldsCheckpoints(dir_ + "/step-9"));

  for (const std::string& other :
       {std::string("digits"), ::testing::TempDir(), dir_ + "/step-11"}) {
    EXPECT_FALSE(HoldsCheckpoints(other)) << other;
    EXPECT_FALSE(trainer::IsCheckpoint(other)) << other;
  }
}

TEST_F(ExportTest, TheNewestCheckpointIsTheGreatestStepOfTheLastIncarnation) {
  EXPECT_EQ(*FindNewestCheckpoint(dir_, "0123456789", &unreadable_), dir_ + "/step-10");
  Write(dir_, 4, 2);
  EXPECT_EQ(*FindNewestCheckpoint(dir_, "0123456789", &unreadable_), dir_ + "/step-4");
  EXPECT_EQ(FindNewestCheckpoint(dir_ + "/step-9", "", &unreadable_).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(unreadable_, SizeIs(0));
}

TEST_F(ExportTest, ACheckpointThatCannotBeReadIsNamed) {
  ASSERT_TRUE(WriteFileAtomic(dir_ + "/step-10/state.json", "{}").ok());
  EXPECT_EQ(*FindNewestCheckpoint(dir_, "", &unreadable_), dir_ + "/step-9");
  EXPECT_THAT(unreadable_, ElementsAre(HasSubstr("/step-10/state.json")));
}

TEST_F(ExportTest, AJobIsFoundAmongOthersByItsId) {
  Write(dir_ + "/digits-01234567", 3, 1);
  EXPECT_EQ(*FindNewestCheckpoint(dir_, "0123456789abcdef", &unreadable_),
            dir_ + "/digits-01234567/step-3");
}

TEST_F(ExportTest, TheBestCheckpointIsTheOneThatTheLinkNames) {
  EXPECT_EQ(FindBestCheckpoint(dir_, "0123456789").status().code(), absl::StatusCode::kNotFound);
  const std::string own = dir_ + "/digits-01234567";
  Write(own, 3, 1);
  ASSERT_EQ(symlink("step-3", (own + "/best").c_str()), 0);
  EXPECT_EQ(*FindBestCheckpoint(dir_, "0123456789abcdef"), own + "/step-3");
  EXPECT_EQ(*FindNewestCheckpoint(own, "", &unreadable_), own + "/step-3");
}

TEST_F(ExportTest, TheModelsOwnFilesAreCopiedInTheTypeThatItCameIn) {
  ASSERT_TRUE(ExportCheckpoint(dir_ + "/step-10", dir_ + "/out", std::nullopt).ok());
  EXPECT_THAT(*ListDir(dir_ + "/out"), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(ReadModelDir(dir_ + "/out")->config.dtype, DType::kBF16);
  EXPECT_EQ(ReadSafetensors(dir_ + "/out/model.safetensors")->buffer(),
            ParametersIn(DType::kBF16).buffer());
  EXPECT_EQ(ExportCheckpoint(dir_ + "/step-10", dir_ + "/out", std::nullopt).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(ExportTest, AskedForFp32ItGivesTheParametersThemselves) {
  ASSERT_TRUE(ExportCheckpoint(dir_ + "/step-10", dir_ + "/out", DType::kF32).ok());
  EXPECT_EQ(ReadModelDir(dir_ + "/out")->config.dtype, DType::kF32);
  EXPECT_EQ(ReadSafetensors(dir_ + "/out/model.safetensors")->buffer(), parameters_.buffer());
}

TEST_F(ExportTest, ADamagedFileIsNotExported) {
  const std::string weights = dir_ + "/step-10/model.safetensors";
  std::string bytes = *ReadFile(weights);
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomic(weights, bytes).ok());
  for (const std::optional<DType> dtype :
       {std::optional<DType>(), std::optional<DType>(DType::kF32)}) {
    const absl::Status status = ExportCheckpoint(dir_ + "/step-10", dir_ + "/out", dtype);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(weights));
    EXPECT_THAT(DetailOf(status).hint, HasSubstr("sluice ckpt verify " + dir_));
  }

  EXPECT_THAT(*ListDir(dir_), ElementsAre("step-10", "step-9"));
}

TEST_F(ExportTest, ADirectoryMayBeNamedWithASlashAtItsEnd) {
  EXPECT_EQ(ExportCheckpoint(dir_ + "/step-10", dir_ + "/out/", std::nullopt), absl::OkStatus());
  EXPECT_EQ(ExportCheckpoint(dir_ + "/step-10", dir_ + "/f32//", DType::kF32), absl::OkStatus());
  EXPECT_TRUE(PathExists(dir_ + "/out/config.json"));
  EXPECT_TRUE(PathExists(dir_ + "/f32/config.json"));
}

TEST_F(ExportTest, TheFactorsOfLowRankTrainingAreAnAdapterThatTheEngineReads) {
  std::vector<TensorSpec> specs;
  for (const char* kind : {"m.", "p.", "v."}) {
    const std::string matrix = absl::StrCat(kind, "model.layers.0.self_attn.q_proj.");
    specs.push_back({matrix + "lora_A", DType::kF32, {4, 16}});
    specs.push_back({matrix + "lora_B", DType::kF32, {16, 4}});
  }
  TensorSet state = *TensorSet::Create(specs);
  for (size_t i = 0; i < state.size(); ++i) {
    float* const values = reinterpret_cast<float*>(state.data(i));
    for (int64_t j = 0; j < state.elements(i); ++j)
      values[j] = static_cast<float>(i) + 0.01f * static_cast<float>(j);
  }
  const std::string dir = trainer::FreshDir();
  trainer::CheckpointStore store({.dir = dir, .source = model_, .model_types = types_});
  trainer::CheckpointContents contents{.model = std::make_shared<SetSource>(&parameters_),
                                       .optimizer = std::make_shared<SetSource>(&state)};
  contents.state = {.version = {1, 0}, .ledger_hash = trainer::FirstLedgerHash(), .lora_alpha = 8};
  const auto written = store.Write(contents);
  ASSERT_TRUE(written.ok()) << written.status();

  const std::string out = dir + "/adapter";
  ASSERT_EQ(ExportAdapter(*written, out), absl::OkStatus());
  const auto adapter = Adapter::Read(out, model_.config);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ((*adapter)->rank(), 4);
  EXPECT_EQ((*adapter)->scale(), 2);
  const TensorSet tensors = *ReadSafetensors(out + "/adapter_model.safetensors");
  EXPECT_THAT(tensors.specs(), SizeIs(2));
  EXPECT_EQ(tensors.as<float>(0)[1], 2.01f) << "of p., not of m. or v.";

  EXPECT_EQ(ExportAdapter(*written, out).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(ExportAdapter(dir_ + "/step-9", dir + "/none").message()),
              HasSubstr("has no low-rank factors"));
}

}  // namespace
}  // namespace sluice::cli
