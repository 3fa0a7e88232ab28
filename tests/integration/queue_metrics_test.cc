#include "tests/integration/metrics_page.h"
#include "tests/integration/queue_scene.h"

namespace sluice::integration {
namespace {

TEST_F(QueueScene, MetricsAreThoseOfTheTableAndStayWithinTheirLimits) {
  ASSERT_NO_FATAL_FAILURE(SetUpJob());

  const auto granted = Admit();
  for (const queue::v1::Grant& grant : granted.grants()) {
    ASSERT_NO_FATAL_FAILURE(WriteAndSeal(grant));
    ASSERT_NO_FATAL_FAILURE(Score());
  }
  ASSERT_NO_FATAL_FAILURE(Train(Acquire(0)));

  const MetricsPage page = ReadMetrics(cluster_.ops("queue-0"));
  CheckMetrics(page, "queue", /*works=*/true);
  for (const char* where : {"\"in_flight\"", "\"in_queue\"", "\"at_cut\""}) {
    EXPECT_TRUE((page.values.at({"sluice_queue_staleness_versions", "where"}).contains(where)))
        << where;
  }
}

}  // namespace
}  // namespace sluice::integration
