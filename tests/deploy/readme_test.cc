#include "tests/deploy/readme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "tests/deploy/checks.h"
#include "tests/deploy/command.h"

namespace sluice::deploy {
namespace {

using testing::IsEmpty;

const std::string kDeploy = std::string(SLUICE_SOURCE_DIR) + "/deploy";

TEST(ReadmeTest, AShellCanReadEachOfTheFirstSteps) {
  const absl::StatusOr<std::vector<std::string>> blocks = ReadBlocks("First steps");
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  for (const std::string& block : *blocks) {
    const absl::StatusOr<std::string> read = RunCommand({"bash", "-nc", block});
    EXPECT_TRUE(read.ok()) << read.status();
  }
}

TEST(ReadmeTest, AHeadingThatIsNotThereIsAnError) {
  EXPECT_TRUE(absl::IsNotFound(ReadBlocks("First step").status()));
}

// In place of a cluster there is a kubectl that prints what it would apply.
TEST(ReadmeTest, TheFirstStepsApplyAllThatTheOverlayNeeds) {
  if (!HasKubectl()) GTEST_SKIP() << "there is no kubectl to render the overlay with";
  const std::string home = MakeTempDir().value(), programs = MakeTempDir().value();
  const absl::StatusOr<std::string> dev = Render("dev");
  ASSERT_TRUE(dev.ok()) << dev.status();
  ASSERT_TRUE(WriteFileAtomic(home + "/dev.yaml", *dev).ok());
  ASSERT_TRUE(WriteFileAtomic(programs + "/kubectl",
                              "#!/bin/bash\n"
                              "echo ---\n"
                              "case \"$*\" in\n"
                              "  'apply -f -') cat ;;\n"
                              "  'apply -k '*) cat \"$3/kustomization.yaml\" >/dev/null &&\n"
                              "    cat \"$HOME/${3##*/}.yaml\" ;;\n"
                              "  *) echo \"unexpected: $*\" >&2; exit 1 ;;\n"
                              "esac\n")
                  .ok());
  std::filesystem::permissions(programs + "/kubectl", std::filesystem::perms::owner_all);

  const absl::StatusOr<std::string> block = ReadFirstSteps();
  ASSERT_TRUE(block.ok()) << block.status();
  const absl::StatusOr<std::string> applied = RunBlock(*block, kDeploy, home, programs);

  ASSERT_TRUE(applied.ok()) << applied.status();
  const absl::StatusOr<Manifest> objects = ParseManifest(*applied);
  ASSERT_TRUE(objects.ok()) << objects.status();
  EXPECT_THAT(FindUnresolvedNames(*objects, *objects), IsEmpty());
  EXPECT_NE(Find(*objects, "Job", "submit-digits"), nullptr);
  // The operator's certificate, with which the next steps call the fleet.
  EXPECT_TRUE(PathExists(home + "/sluice-ca/operator/tls.crt"));
}

}  // namespace
}  // namespace sluice::deploy
