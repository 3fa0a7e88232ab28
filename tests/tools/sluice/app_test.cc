#include "tools/sluice/app.h"

#include <gtest/gtest.h>

#include "common/daemon/daemon.h"

namespace sluice::cli {
namespace {

TEST(SluiceAppTest, TheVersionIsThatOfTheDaemons) {
  SluiceApp app;
  try {
    app.parser().parse("--version");
    FAIL() << "--version was taken for a command";
  } catch (const CLI::CallForVersion& version) {
    EXPECT_STREQ(version.what(), daemon::kBuild);
    EXPECT_EQ(version.get_exit_code(), 0);
  }
}

}  // namespace
}  // namespace sluice::cli
