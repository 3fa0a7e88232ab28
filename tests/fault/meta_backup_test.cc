// `sluice meta backup` of a running controller, and `sluice meta restore` into another one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "tests/common/daemon/http.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"
#include "tests/integration/harness/redis_server.h"

namespace sluice::integration {
namespace {

using testing::HasSubstr;

class MetaBackupTest : public testing::Test {
 protected:
  // Runs the CLI, and expects its exit code. Returns its stdout and stderr.
  std::string Sluice(Cluster& cluster, std::vector<std::string> args, int exit = 0) {
    const auto said = cluster.Sluice(std::move(args));
    EXPECT_EQ(said.status(), absl::OkStatus());
    if (!said.ok()) return "";
    EXPECT_EQ(said->exit, exit) << said->err;
    return said->out + said->err;
  }
};

TEST_F(MetaBackupTest, AFinishedJobIsKnownToANewControllerOnAnotherKindOfStore) {
  Cluster before;
  ASSERT_EQ(before.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&before, /*steps=*/3);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitEnd(kLong).status(), absl::OkStatus());
  const std::string file = before.dir() + "/jobs.backup";

  EXPECT_THAT(Sluice(before, {"meta", "backup", "-o", file}), HasSubstr("1 jobs"));
  EXPECT_THAT(before.Log("controller-0"), HasSubstr("\"method\":\"Backup\""));
  EXPECT_THAT(Sluice(before, {"meta", "backup", "-o", file}, 8), HasSubstr("exists already"));
  // As a controller tells it that has read it from its store, where times have microseconds.
  ASSERT_EQ(before.Kill("controller-0"), absl::OkStatus());
  ASSERT_EQ(before.Start("controller-0"), absl::OkStatus());
  const std::string described = Sluice(before, {"job", "describe", (*job)->id(), "-o", "json"});

  // The controller that runs has its folder.
  EXPECT_THAT(
      Sluice(before, {"meta", "restore", file, "--data-dir", before.dir() + "/controller-0"}, 8),
      HasSubstr("controller-0"));

  const auto redis = RedisServer::Start({.durable = true});
  ASSERT_NE(redis, nullptr);
  const std::string store = absl::StrCat("redis://", redis->endpoint().str());
  Cluster after({.store = store});
  EXPECT_THAT(Sluice(before, {"meta", "restore", file, "--store", store}),
              HasSubstr("restored 1 jobs"));
  EXPECT_THAT(Sluice(before, {"meta", "restore", file, "--store", store}, 8),
              HasSubstr("SLUICE-META-0015"));
  Sluice(before, {"meta", "restore", file, "--store", store, "--yes"});

  ASSERT_EQ(after.Start("controller-0"), absl::OkStatus());
  ASSERT_EQ(after.AwaitLeader(kLong).status(), absl::OkStatus());
  EXPECT_EQ(Sluice(after, {"job", "describe", (*job)->id(), "-o", "json"}), described);
  EXPECT_THAT(Sluice(before, {"meta", "restore", file, "--store", store, "--yes"}, 8),
              HasSubstr("stop all its controllers"));
}

// How many steps the trainer has trained, as it says itself.
int64_t StepsOf(const Cluster& cluster) {
  const std::string text = daemon::HttpGet(cluster.ops("trainer-0"), "/metrics");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    double steps = 0;
    if (absl::StartsWith(line, "sluice_trainer_steps_total{") &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &steps))
      return static_cast<int64_t>(steps);
  }
  return 0;
}

TEST_F(MetaBackupTest, ARunningJobOutlivesTheLossOfTheStoreAndIsKnownAgainOnceItIsRestored) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = SubmitDigits(&cluster, /*steps=*/1'000'000);
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(3, kLong), absl::OkStatus());
  const std::string file = cluster.dir() + "/jobs.backup", data = cluster.dir() + "/controller-0";
  Sluice(cluster, {"meta", "backup", "-o", file});

  ASSERT_EQ(cluster.Kill("controller-0"), absl::OkStatus());
  ASSERT_EQ(RemoveTree(data), absl::OkStatus());
  ASSERT_EQ(cluster.Start("controller-0"), absl::OkStatus());
  const absl::Time deadline = absl::Now() + kLong;
  for (const char* daemon : {"trainer-0", "rollout-0", "reward-0"}) {
    const std::string line = absl::StrCat("\"event\":\"unknown_jobs\",\"worker\":\"", daemon, "\"");
    while (!absl::StrContains(cluster.Log("controller-0"), line)) ASSERT_LT(absl::Now(), deadline);
  }
  const int64_t steps = StepsOf(cluster);
  while (StepsOf(cluster) < steps + 20) ASSERT_LT(absl::Now(), deadline);

  ASSERT_EQ(cluster.Kill("controller-0"), absl::OkStatus());
  Sluice(cluster, {"meta", "restore", file, "--data-dir", data, "--yes"});
  ASSERT_EQ(cluster.Start("controller-0"), absl::OkStatus());
  nlohmann::json described;
  do {
    ASSERT_LT(absl::Now(), deadline) << described;
    const auto said = cluster.Sluice({"job", "describe", (*job)->id(), "-o", "json"});
    if (said.ok() && said->exit == 0) described = nlohmann::json::parse(said->out);
  } while (!described.is_object() || described["step"] < steps + 40);
  EXPECT_EQ(described["state"], "RUNNING");
  EXPECT_EQ(described["incarnation"], 1);

  Sluice(cluster, {"job", "cancel", (*job)->id()});
  Sluice(cluster, {"job", "wait", (*job)->id(), "--for", "CANCELLED", "--timeout", "2m"});
  EXPECT_THAT(Sluice(cluster, {"queue", "fsck", (*job)->id()}), HasSubstr("balanced"));
}

TEST_F(MetaBackupTest, ADamagedFileIsRefused) {
  Cluster cluster;
  ASSERT_EQ(cluster.Start("controller-0"), absl::OkStatus());
  const std::string file = cluster.dir() + "/jobs.backup";
  Sluice(cluster, {"meta", "backup", "-o", file});
  std::string bytes = ReadFile(file).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  ASSERT_EQ(WriteFileAtomic(file, bytes), absl::OkStatus());
  EXPECT_THAT(Sluice(cluster, {"meta", "restore", file, "--data-dir", cluster.dir() + "/new"}, 1),
              HasSubstr("SLUICE-META-0013"));
}

}  // namespace
}  // namespace sluice::integration
