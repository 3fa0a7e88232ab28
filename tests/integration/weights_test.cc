#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/checkpoint/model_dir.h"
#include "tests/integration/faults.h"
#include "tests/integration/metrics_page.h"

namespace sluice::integration {
namespace {

// The bytes of weights of this kind that a daemon counts.
double WeightBytes(const MetricsPage& page, const std::string& kind) {
  double sum = 0;
  for (const absl::string_view line : absl::StrSplit(page.text, '\n')) {
    if (!absl::StartsWith(line, "sluice_weights_bytes_total{") ||
        !absl::StrContains(line, absl::StrCat("kind=\"", kind, "\"")))
      continue;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
    sum += value;
  }
  return sum;
}

class WeightsTest : public FaultsTest {};

// The example has 98,944 parameters, and most steps at this learning rate change few of them in
// bfloat16.
TEST_F(WeightsTest, VersionsComeAsDeltasThroughTheLossOfRolloutsAndTrainers) {
  ASSERT_NO_FATAL_FAILURE(
      StartJob({.rollouts = 2}, {"model.dtype=bfloat16", "trainer.optimizer.lr=1e-5",
                                 "checkpoint.every_steps=10", "resources.rollout.max=2"}));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("rollout-0"));
  ASSERT_NO_FATAL_FAILURE(KillAndRestart("trainer-0"));
  ASSERT_EQ(job_->AwaitStep(fault_step_ + 200, kLong), absl::OkStatus());

  const ModelDir model = *ReadModelDir(SLUICE_SOURCE_DIR "/configs/examples/digits");
  double whole = 0;
  for (const TensorSpec& spec : model.config.Parameters(DType::kBF16))
    whole += static_cast<double>(*NumBytes(spec));
  const double published = WeightBytes(ReadMetrics(cluster_->ops("trainer-0")), "published");
  EXPECT_GT(published, whole) << "the first version of a trainer is whole";
  EXPECT_LT(published, 50 * whole) << "200 versions";
  for (const std::string id : {"rollout-0", "rollout-1"}) {
    const double fetched = WeightBytes(ReadMetrics(cluster_->ops(id)), "fetched");
    EXPECT_GT(fetched, 0) << id;
    EXPECT_LT(fetched, 50 * whole) << id;
  }
  ExpectGoesOn();
}

}  // namespace
}  // namespace sluice::integration
