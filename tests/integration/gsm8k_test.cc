#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_set.h"
#include "common/testing/data.h"
#include "common/weights/fingerprint.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/harness/versions.h"

namespace sluice::integration {
namespace {

Fingerprint FingerprintOfDir(const std::string& dir) {
  const auto model = ReadModelDir(dir);
  EXPECT_EQ(model.status(), absl::OkStatus());
  const auto tensors = ReadWeights(*model, DType::kF32);
  EXPECT_EQ(tensors.status(), absl::OkStatus());
  return FingerprintOf(*tensors);
}

// Real questions, and a model that has a chat template.
TEST(Gsm8kTest, TheExampleTrainsOnRealQuestionsAndDropsThoseTooLong) {
  SLUICE_NEEDS_TEST_DATA("gsm8k/train.jsonl");
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  const std::string model = testing_data::Path("models/qwen3-tiny");
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job =
      Job::Submit(&cluster, SLUICE_SOURCE_DIR "/configs/examples/gsm8k.yaml",
                  {absl::StrCat("model.path=", model),
                   absl::StrCat("data.train.0.path=", testing_data::Path("gsm8k/train.jsonl")),
                   absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")});
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(2));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 3);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  EXPECT_GT(end->result().ledger().dropped().at("prompt_too_long"), 0);
  EXPECT_FALSE(FingerprintOfDir(end->result().checkpoint()) == FingerprintOfDir(model))
      << "three steps changed no weight";
}

TEST(GeneratedDataTest, TheExampleWithMathematicsTrainsOnTasksThatAreMadeForIt) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny/model.safetensors");
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job =
      Job::Submit(&cluster, SLUICE_SOURCE_DIR "/configs/examples/math.yaml",
                  {absl::StrCat("model.path=", testing_data::Path("models/qwen3-tiny")),
                   absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")});
  ASSERT_EQ(job.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(absl::Minutes(2));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(end->result().steps(), 3);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  // Each answer was scored, right or wrong.
  EXPECT_EQ(end->result().ledger().dropped().at("unscorable"), 0) << Text(*end);
}

// A checkpoint of a bf16 model, in the format that transformers loads, has bit for bit the weights
// that the engines were given.
TEST(Gsm8kTest, CheckpointsOfABf16ModelHoldThePublishedWeights) {
  SLUICE_NEEDS_TEST_DATA("gsm8k/train.jsonl");
  SLUICE_NEEDS_TEST_DATA("models/qwen3-tiny-bf16-sharded/model.safetensors.index.json");
  const std::string model = testing_data::Path("models/qwen3-tiny-bf16-sharded");
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job =
      Job::Submit(&cluster, SLUICE_SOURCE_DIR "/configs/examples/gsm8k.yaml",
                  {absl::StrCat("model.path=", model), "model.dtype=bfloat16",
                   absl::StrCat("data.train.0.path=", testing_data::Path("gsm8k/train.jsonl")),
                   absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")});
  ASSERT_EQ(job.status(), absl::OkStatus());
  PublishedVersions published(&cluster, "trainer-0", (*job)->id());

  const auto end = (*job)->AwaitEnd(absl::Minutes(2));
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);

  int compared = 0;
  const std::string last = end->result().checkpoint(), prefix = last.substr(0, last.rfind('-') + 1);
  for (const auto& [number, by_incarnation] : published.seen()) {
    const std::string weights = absl::StrCat(prefix, number, "/model.safetensors");
    if (!PathExists(weights)) continue;
    const auto stored = ReadSafetensors(weights);
    ASSERT_EQ(stored.status(), absl::OkStatus());
    for (const TensorSpec& spec : stored->specs()) EXPECT_EQ(spec.dtype, DType::kBF16) << spec.name;
    EXPECT_EQ(FingerprintOf(*stored).bytes(), by_incarnation.begin()->second) << weights;
    ++compared;
  }

  EXPECT_GE(compared, 1);
}

}  // namespace
}  // namespace sluice::integration
