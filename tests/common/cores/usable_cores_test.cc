#include "common/cores/usable_cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/file.h"

namespace sluice {
namespace {

int AllowedCores() {
  cpu_set_t mask;
  EXPECT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  return CPU_COUNT(&mask);
}

class UsableCoresTest : public ::testing::Test {
 protected:
  UsableCoresTest() : dir_(::testing::TempDir() + "/usable-cores-" + std::to_string(getpid())) {}
  ~UsableCoresTest() override { (void)RemoveTree(dir_); }

  void Write(const std::string& name, const std::string& text) {
    const std::string path = dir_ + "/" + name;
    ASSERT_TRUE(MakeDirs(path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomic(path, text).ok());
  }
  int Cores() { return UsableCores({.cgroup = dir_ + "/cgroup", .mount = dir_ + "/fs"}); }

  const std::string dir_;
};

TEST_F(UsableCoresTest, WithoutAQuotaTheyAreThoseOfTheAffinityMask) {
  EXPECT_EQ(Cores(), AllowedCores());
  Write("cgroup", "0::/a/b\n");
  Write("fs/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(Cores(), AllowedCores());
}

TEST_F(UsableCoresTest, AQuotaOfACgroupOrOfOneAboveItLimitsThem) {
  Write("cgroup", "0::/a/b\n");
  Write("fs/a/cpu.max", "100000 100000\n");
  Write("fs/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(Cores(), 1);
}

TEST_F(UsableCoresTest, APartOfACoreCountsAsOne) {
  Write("cgroup", "0::/\n");
  Write("fs/cpu.max", "20000 100000\n");
  EXPECT_EQ(Cores(), 1);
  Write("fs/cpu.max", "110000 100000\n");
  EXPECT_EQ(Cores(), std::min(2, AllowedCores()));
}

TEST_F(UsableCoresTest, CgroupsOfVersionOneHaveQuotaAndPeriodInTwoFiles) {
  Write("cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n");
  Write("fs/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  Write("fs/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Cores(), 1);
  Write("fs/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(Cores(), AllowedCores());
}

}  // namespace
}  // namespace sluice
