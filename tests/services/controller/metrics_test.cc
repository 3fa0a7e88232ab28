#include "services/controller/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "tests/services/controller/world.h"

namespace sluice::controller {
namespace {

class MetricsTest : public testing::Test {
 protected:
  // The value of a series, given as on the metrics page; -1 if there is no such series.
  double Read(const std::string& series) {
    metrics_.Update(*world_.core, world_.now());
    const std::string text = absl::StrCat("\n", registry_.Text());
    const size_t at = text.find(absl::StrCat("\n", series, " "));
    double value = -1;
    if (at == text.npos) return value;
    const size_t begin = at + series.size() + 2;
    EXPECT_TRUE(absl::SimpleAtod(text.substr(begin, text.find('\n', begin) - begin), &value));
    return value;
  }
  double Lost() { return Read("sluice_controller_daemons{role=\"rollout\",state=\"lost\"}"); }
  double SinceLastStep() {
    return absl::ToUnixSeconds(world_.now().wall) -
           Read("sluice_job_last_step_timestamp_seconds{job_id=\"a\"}");
  }

  World world_;
  metrics::Registry registry_;
  Metrics metrics_{&registry_};
};

TEST_F(MetricsTest, ADeadDaemonCountsAsLostForAnHour) {
  world_.StartFleet();
  world_.Settle();
  EXPECT_EQ(Lost(), 0);

  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(15));
  EXPECT_EQ(Lost(), 1);

  world_.Pass(absl::Hours(1), absl::Minutes(1));
  EXPECT_EQ(Lost(), 0);
}

TEST_F(MetricsTest, ADaemonThatDrainedAndLeftIsNotLost) {
  world_.StartFleet();
  world_.actors["rollout-0"].draining = true;
  world_.Settle();

  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(15));

  EXPECT_EQ(Lost(), 0);
}

TEST_F(MetricsTest, ADaemonThatWasGoneBeforeTheControllerStartedIsNotLost) {
  world_.StartFleet();
  world_.Settle();
  world_.Kill("rollout-0");
  world_.Pass(absl::Seconds(15));

  world_.Restart();
  Metrics fresh(&registry_);
  fresh.Update(*world_.core, world_.now());

  EXPECT_EQ(Lost(), 0);
}

// Else the alert SluiceJobNoProgress would fire for each job that has waited in the queue.
TEST_F(MetricsTest, TheTimeSinceTheLastStepBeginsWhenTheJobStarts) {
  world_.Submit("a");
  world_.Pass(absl::Minutes(5), absl::Seconds(10));
  EXPECT_NEAR(SinceLastStep(), 0, 1) << "it waits for daemons";

  world_.StartFleet();
  world_.Settle();
  world_.Pass(absl::Minutes(3), absl::Seconds(2));

  EXPECT_EQ(Read("sluice_job_state{job_id=\"a\",state=\"starting\"}"), 1);
  EXPECT_NEAR(SinceLastStep(), 180, 5) << "it starts";
}

}  // namespace
}  // namespace sluice::controller
