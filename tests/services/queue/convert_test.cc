#include "services/queue/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/roots.h"
#include "tests/services/queue/wire.h"

namespace sluice::queue {
namespace {

class ConfinedSpecTest : public testing::Test {
 protected:
  void SetUp() override { SetProcessRoots(*Roots::Open({"/usr/share"}, {})); }
  void TearDown() override { SetProcessRoots(nullptr); }

  static absl::Status Read(const std::string& path) {
    v1::SetJobRequest request;
    *request.mutable_spec() = SmallQueueSpec(path);
    return FromProto(request).status();
  }
};

TEST_F(ConfinedSpecTest, AFileOutsideOfTheRootsIsRefused) {
  EXPECT_THAT(Read("/etc/hostname").message(), testing::HasSubstr("/etc/hostname"));
}

// A generator stands in the place of a path, and reads no file.
TEST_F(ConfinedSpecTest, AGeneratorLiesInNoFolder) {
  EXPECT_EQ(Read("generator:countdown?rows=5&levels=1&seed=1"), absl::OkStatus());
}

TEST(SpecTest, WavesAndRestsComeAsTheControllerTellsThem) {
  v1::SetJobRequest request;
  v1::QueueSpec& wire = *request.mutable_spec();
  wire = SmallQueueSpec("/usr/share/rows.jsonl");
  wire.set_first_wave(4);
  wire.set_rest_after(3);
  wire.set_rest_steps(7);
  const auto set = FromProto(request);
  ASSERT_EQ(set.status(), absl::OkStatus());
  EXPECT_EQ(set->spec.first_wave, 4u);
  EXPECT_EQ(set->spec.rest_after, 3u);
  EXPECT_EQ(set->spec.rest_steps, 7u);
}

}  // namespace
}  // namespace sluice::queue
