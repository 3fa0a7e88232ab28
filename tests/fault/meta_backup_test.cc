// `sluice meta backup` of a running controller, and `sluice meta restore` into another one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
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
