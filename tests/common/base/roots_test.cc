#include "common/base/roots.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"
#include "tests/common/base/hostile_paths.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Access = Roots::Access;

// Each test has an empty folder with a root to read, a root to write, and a folder outside of both.
class RootsTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing_data::TempPath(testing::UnitTest::GetInstance()->current_test_info()->name());
    for (const char* name : {"/read/model", "/write", "/outside"})
      ASSERT_TRUE(MakeDirs(dir_ + name).ok());
    ASSERT_TRUE(WriteFileAtomic(dir_ + "/read/model/config.json", "{}").ok());
    ASSERT_TRUE(WriteFileAtomic(dir_ + "/outside/secret", "secret").ok());
  }
  void TearDown() override { SetProcessRoots(nullptr); }

  std::shared_ptr<const Roots> Open() { return *Roots::Open({dir_ + "/read"}, {dir_ + "/write"}); }
  void Confine() { SetProcessRoots(Open()); }

  std::string dir_;
};

TEST_F(RootsTest, APathBelowARootIsAllowedAsTheRootAllows) {
  const auto roots = Open();
  EXPECT_TRUE(roots->Check(dir_ + "/read", Access::kRead).ok());
  EXPECT_TRUE(roots->Check(dir_ + "/read/model", Access::kRead).ok());
  EXPECT_TRUE(roots->Check(dir_ + "/write/job", Access::kWrite).ok());
  EXPECT_TRUE(roots->Check(dir_ + "/write/job", Access::kRead).ok());

  const absl::Status written = roots->Check(dir_ + "/read/model", Access::kWrite);
  EXPECT_EQ(ReasonOf(written), "OUTSIDE_ROOTS");
  EXPECT_THAT(written.message(), HasSubstr(dir_ + "/write"));
}

TEST_F(RootsTest, EveryHostilePathIsRefused) {
  const auto roots = Open();
  int refused = 0;
  for (const std::string& path : HostilePaths(dir_)) {
    EXPECT_EQ(ReasonOf(roots->Check(path, Access::kRead)), "OUTSIDE_ROOTS") << path;
    EXPECT_EQ(ReasonOf(roots->Check(path, Access::kWrite)), "OUTSIDE_ROOTS") << path;
    refused += 2;
  }
  EXPECT_GE(refused, 200);
}

TEST_F(RootsTest, ALinkThatLeadsOutOfARootIsNotFollowed) {
  ASSERT_EQ(symlink((dir_ + "/outside/secret").c_str(), (dir_ + "/read/absolute").c_str()), 0);
  ASSERT_EQ(symlink("../outside/secret", (dir_ + "/read/relative").c_str()), 0);
  ASSERT_EQ(symlink("../outside", (dir_ + "/read/folder").c_str()), 0);
  ASSERT_EQ(symlink("/proc/self/environ", (dir_ + "/read/magic").c_str()), 0);
  EXPECT_EQ(*ReadFile(dir_ + "/read/relative"), "secret");
  Confine();

  for (const char* name :
       {"absolute", "relative", "folder/secret", "magic", "model/../../outside/secret"}) {
    EXPECT_EQ(ReasonOf(ReadFile(dir_ + "/read/" + name).status()), "OUTSIDE_ROOTS") << name;
  }
  EXPECT_EQ(ReasonOf(ListDir(dir_ + "/read/folder").status()), "OUTSIDE_ROOTS");
}

TEST_F(RootsTest, ALinkWithinARootIsFollowed) {
  ASSERT_EQ(symlink("model/config.json", (dir_ + "/read/link").c_str()), 0);
  Confine();
  EXPECT_EQ(*ReadFile(dir_ + "/read/link"), "{}");
  EXPECT_THAT(*ListDir(dir_ + "/read"), ElementsAre("link", "model"));
}

TEST_F(RootsTest, NothingIsWrittenBelowARootForReading) {
  Confine();
  EXPECT_EQ(ReasonOf(WriteFileAtomic(dir_ + "/read/new", "x")), "OUTSIDE_ROOTS");
  EXPECT_EQ(ReasonOf(OpenPath(dir_ + "/read/model/config.json", O_RDWR).status()), "OUTSIDE_ROOTS");
  EXPECT_EQ(ReasonOf(OpenPath(dir_ + "/read/model/config.json", O_RDONLY | O_TRUNC).status()),
            "OUTSIDE_ROOTS");
  EXPECT_EQ(*ReadFile(dir_ + "/read/model/config.json"), "{}");
}

TEST_F(RootsTest, FilesAndFoldersAreMadeRenamedAndRemovedBelowARoot) {
  Confine();
  const std::string job = dir_ + "/write/job/deep";
  ASSERT_TRUE(MakeDirs(job).ok());
  ASSERT_TRUE(WriteFileAtomic(job + "/a", "1").ok());
  ASSERT_TRUE(WriteDirAtomic(job + "/b", [](const std::string& temporary) {
                return WriteFileAtomic(temporary + "/c", "2");
              }).ok());
  EXPECT_THAT(*ListDir(job), ElementsAre("a", "b"));
  EXPECT_EQ(*ReadFile(job + "/b/c"), "2");
  EXPECT_TRUE(RemoveTree(dir_ + "/write/job").ok());
  EXPECT_THAT(*ListDir(dir_ + "/write"), ElementsAre());
}

TEST_F(RootsTest, ALinkInTheWayOfAWriteIsNotFollowed) {
  ASSERT_EQ(symlink("../outside", (dir_ + "/write/job").c_str()), 0);
  Confine();
  EXPECT_EQ(ReasonOf(WriteFileAtomic(dir_ + "/write/job/a", "x")), "OUTSIDE_ROOTS");
  EXPECT_EQ(ReasonOf(MakeDirs(dir_ + "/write/job/deep")), "OUTSIDE_ROOTS");
  EXPECT_EQ(ReasonOf(RemoveTree(dir_ + "/write/job/secret")), "OUTSIDE_ROOTS");
  SetProcessRoots(nullptr);
  EXPECT_THAT(*ListDir(dir_ + "/outside"), ElementsAre("secret"));
}

TEST_F(RootsTest, PathsThatBeginWithNoRootAreTheProcesssOwn) {
  Confine();
  EXPECT_EQ(*ReadFile(dir_ + "/outside/secret"), "secret");
  EXPECT_TRUE(WriteFileAtomic(dir_ + "/outside/own", "x").ok());
}

TEST_F(RootsTest, TheInnermostRootDecides) {
  ASSERT_TRUE(MakeDirs(dir_ + "/read/out").ok());
  SetProcessRoots(*Roots::Open({dir_ + "/read"}, {dir_ + "/read/out"}));
  EXPECT_TRUE(WriteFileAtomic(dir_ + "/read/out/a", "x").ok());
  EXPECT_EQ(ReasonOf(WriteFileAtomic(dir_ + "/read/a", "x")), "OUTSIDE_ROOTS");
}

TEST_F(RootsTest, WhatCannotBeARootIsRefused) {
  for (const std::string& path : {std::string(), std::string("/"), std::string("read"),
                                  dir_ + "/read/", dir_ + "/read/..", dir_ + "//read"}) {
    EXPECT_EQ(ReasonOf(Roots::Open({path}, {}).status()), "BAD_ROOT") << path;
  }
  EXPECT_TRUE(absl::IsNotFound(Roots::Open({dir_ + "/missing"}, {}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Roots::Open({dir_ + "/outside/secret"}, {}).status()));
}

TEST_F(RootsTest, ARootThatThisHostDoesNotHaveCanStillCheckPaths) {
  const auto roots = *Roots::Open({dir_ + "/missing"}, {}, /*must_exist=*/false);
  EXPECT_TRUE(roots->Check(dir_ + "/missing/model", Access::kRead).ok());
  SetProcessRoots(roots);
  EXPECT_TRUE(absl::IsNotFound(ReadFile(dir_ + "/missing/model").status()));
}

}  // namespace
}  // namespace sluice
