#include "services/controller/live_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/base/status.h"
#include "common/config/fields.h"
#include "common/config/leaves.h"

namespace sluice::controller {
namespace {

using ::testing::HasSubstr;

job::v1::JobSpec DefaultSpec() {
  job::v1::JobSpec spec;
  config::FillDefaults(&spec);
  return spec;
}

// The mark is what `sluice config defaults` shows, and the table is what `sluice job set` does.
TEST(LiveKeysTest, TheKeysThatCanBeSetAreThoseThatTheProtoMarksLive) {
  std::set<std::string> known, live, settable;
  config::VisitLeaves(DefaultSpec(), /*unset_blocks=*/true, [&](const config::Leaf& leaf) {
    known.insert(leaf.rule_path);
    if (config::RuleOf(*leaf.field).live()) live.insert(leaf.rule_path);
  });
  for (const LiveKey& key : LiveKeys()) {
    EXPECT_EQ(known.count(key.key), 1u) << key.key << " is no key of a job file";
    if (key.refusal == nullptr) settable.insert(key.key);
  }
  EXPECT_EQ(settable, live);
}

TEST(LiveKeysTest, AValueIsSetAndTheChangeIsTold) {
  std::string changes;
  const auto spec =
      SetLiveKeys(DefaultSpec(), {{"limits.wall", "2h"}, {"resources.rollout.max", "8"}}, &changes);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->limits().wall().seconds(), 7200);
  EXPECT_EQ(spec->resources().rollout().max(), 8u);
  EXPECT_EQ(spec->resources().rollout().min(), DefaultSpec().resources().rollout().min());
  EXPECT_EQ(changes, "limits.wall: none -> 2h; resources.rollout.max: 4 -> 8");
}

TEST(LiveKeysTest, WhatCannotBeChangedIsRefusedWithItsReasonAndWithWhatCan) {
  const auto refusal = [](const std::string& key, const std::string& value) {
    std::string changes;
    const absl::Status status = SetLiveKeys(DefaultSpec(), {{key, value}}, &changes).status();
    EXPECT_EQ(DetailOf(status).catalogue, "SLUICE-CTL-0026") << key;
    return status;
  };
  for (const LiveKey& key : LiveKeys()) {
    if (key.refusal == nullptr) continue;
    const absl::Status status = refusal(key.key, "1");
    EXPECT_THAT(status.message(), HasSubstr(key.refusal));
    EXPECT_THAT(DetailOf(status).hint, HasSubstr("limits.wall"));
  }
  EXPECT_THAT(refusal("model.path", "/m").message(), HasSubstr("is no key that can be changed"));
  EXPECT_THAT(refusal("limits.wall", "soon").message(), HasSubstr("soon"));
  EXPECT_THAT(refusal("limits.wall.seconds", "1").message(), HasSubstr("limits.wall.seconds"));
  EXPECT_THAT(refusal("limits.wall", "{" + std::string(1000, 'a') + ": 1}").message(),
              HasSubstr("has 1005 bytes; the limit is 256"));
}

}  // namespace
}  // namespace sluice::controller
