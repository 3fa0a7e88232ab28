#include "common/weights/holder_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/weights/object_fetcher.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Facts of the third rollout of a chain, as sets.
struct Scene {
  std::set<std::string> on_this_host, avoided;
  bool shared_memory = true, folder = false, trainer = true, broadcast = false;
  std::optional<absl::Status> ucx = std::nullopt;

  std::vector<PlannedHolder> Plan() const {
    HolderFacts facts{.holders = {"second", "first"},
                      .upstream = {"first", "second"},
                      .shared_memory = shared_memory,
                      .broadcast = broadcast && trainer,
                      .folder = folder,
                      .ucx = ucx};
    if (trainer) {
      facts.holders.emplace_back(kOriginId);
      facts.upstream.insert(facts.upstream.begin(), std::string(kOriginId));
    }
    facts.holders.push_back("last");
    facts.reach_memory = [&](const std::string& id) {
      return on_this_host.contains(id) ? absl::OkStatus()
                                       : absl::UnavailableError("connect: refused");
    };
    facts.is_avoided = [&](const std::string& key) { return avoided.contains(key); };
    return PlanHolders(facts);
  }
};

std::vector<std::string> Steps(const std::vector<PlannedHolder>& plan) {
  std::vector<std::string> steps;
  for (const PlannedHolder& planned : plan)
    steps.push_back(absl::StrCat(planned.transport->name, " ", planned.id));
  return steps;
}

TEST(HolderPlanTest, WithoutMemoryOrFolderAllAreCalledAndTheReasonNamesBoth) {
  const auto plan = Scene{}.Plan();
  EXPECT_THAT(Steps(plan), ElementsAre("grpc second", "grpc first", "grpc ", "grpc last"));
  EXPECT_THAT(plan[0].why, HasSubstr("shares memory with this host"));
  EXPECT_THAT(plan[0].why, HasSubstr("weights.dir is not set"));

  const Scene without = {.on_this_host = {""}, .shared_memory = false};
  EXPECT_THAT(without.Plan()[0].why, HasSubstr("weights.shared_memory is false"));
}

TEST(HolderPlanTest, TheMemoryOfTheTrainerIsReadIfItIsHereElseThatOfTheFirstOfTheChain) {
  auto plan = Scene{.on_this_host = {"", "first", "second"}}.Plan();
  EXPECT_THAT(Steps(plan), ElementsAre("shm ", "grpc second", "grpc first", "grpc ", "grpc last"));
  EXPECT_THAT(plan[0].why, HasSubstr("the trainer is on this host"));

  plan = Scene{.on_this_host = {"first", "second"}}.Plan();
  EXPECT_EQ(Steps(plan)[0], "shm first");
  EXPECT_THAT(plan[0].why, HasSubstr("first is on this host"));
  EXPECT_EQ(Steps(Scene{.on_this_host = {"second"}, .trainer = false}.Plan())[0], "shm second");
}

// Two that read from each other would both wait.
TEST(HolderPlanTest, TheMemoryOfARolloutBehindThisOneIsNotRead) {
  EXPECT_EQ(Steps(Scene{.on_this_host = {"last"}}.Plan())[0], "grpc second");
}

TEST(HolderPlanTest, TheFolderIsReadBeforeAnybodyIsCalledAndAfterMemory) {
  auto plan = Scene{.folder = true}.Plan();
  EXPECT_THAT(Steps(plan),
              ElementsAre("file weights.dir", "grpc second", "grpc first", "grpc ", "grpc last"));
  EXPECT_THAT(plan[0].why, HasSubstr("weights.dir is set, and no trainer or rollout"));
  EXPECT_THAT(
      Steps(Scene{.on_this_host = {""}, .folder = true}.Plan()),
      ElementsAre("shm ", "file weights.dir", "grpc second", "grpc first", "grpc ", "grpc last"));
}

TEST(HolderPlanTest, ABroadcastIsWaitedForByThoseWithoutMemoryUnlessOneFailedAShortWhileAgo) {
  Scene scene{.folder = true, .broadcast = true};
  const auto plan = scene.Plan();
  EXPECT_THAT(Steps(plan), ElementsAre("c10d ", "file weights.dir", "grpc second", "grpc first",
                                       "grpc ", "grpc last"));
  EXPECT_THAT(plan[0].why, HasSubstr("weights.broadcast is set"));
  EXPECT_THAT(plan[1].why, HasSubstr("a broadcast brings only a whole version"));

  scene.on_this_host = {"first"};
  EXPECT_THAT(Steps(scene.Plan()), ElementsAre("shm first", "file weights.dir", "grpc second",
                                               "grpc first", "grpc ", "grpc last"));
  scene = {.avoided = {HolderKey("", kC10dCaps)}, .broadcast = true};
  EXPECT_EQ(Steps(scene.Plan())[0], "grpc second");
  EXPECT_THAT(scene.Plan()[0].why, HasSubstr("a broadcast failed a short while ago"));
}

TEST(HolderPlanTest, WithoutSharedMemoryTheNearestHolderIsReadOverUcxBeforeTheFolderAndCalls) {
  auto plan = Scene{.folder = true, .ucx = absl::OkStatus()}.Plan();
  EXPECT_THAT(Steps(plan), ElementsAre("ucx second", "file weights.dir", "grpc second",
                                       "grpc first", "grpc ", "grpc last"));
  EXPECT_THAT(plan[0].why, HasSubstr("weights.ucx is true, and no trainer or rollout before"));
  plan = Scene{.on_this_host = {""}, .ucx = absl::OkStatus()}.Plan();
  EXPECT_THAT(Steps(plan), ElementsAre("shm ", "grpc second", "grpc first", "grpc ", "grpc last"));
}

TEST(HolderPlanTest, OverUcxOneThatFailedIsPassedOverAndTheReasonIsSaid) {
  Scene scene{.avoided = {HolderKey("second", kUcxCaps), "first"}, .ucx = absl::OkStatus()};
  const auto plan = scene.Plan();
  EXPECT_EQ(Steps(plan)[0], "ucx ");
  EXPECT_THAT(plan[0].why, HasSubstr("UCX to second failed a short while ago"));

  scene.ucx = absl::FailedPreconditionError("rollout-2 was started without --ucx-devices");
  EXPECT_EQ(Steps(scene.Plan())[0], "grpc second");
  EXPECT_THAT(scene.Plan()[0].why, HasSubstr("rollout-2 was started without --ucx-devices"));
}

TEST(HolderPlanTest, WhatFailedAShortWhileAgoComesLaterOrNotAtAll) {
  Scene scene{.on_this_host = {"", "first"},
              .avoided = {HolderKey("", kShmCaps), HolderKey("weights.dir", kFileCaps)},
              .folder = true};
  EXPECT_THAT(Steps(scene.Plan()), ElementsAre("shm first", "grpc second", "grpc first", "grpc ",
                                               "file weights.dir", "grpc last"));
  scene.on_this_host = {""};
  EXPECT_THAT(scene.Plan()[0].why, HasSubstr("weights.dir failed a short while ago"));
}

TEST(HolderPlanTest, WhateverIsKnownEachWhoCanBeCalledIsInThePlanOnceAndEachStepHasAReason) {
  const std::vector<std::string> all = {"", "first", "second", "last"};
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SplitMix64 random(seed);
    Scene scene{.shared_memory = random.Below(2) == 0,
                .folder = random.Below(2) == 0,
                .trainer = random.Below(2) == 0,
                .broadcast = random.Below(2) == 0};
    if (random.Below(2) == 0) scene.ucx = absl::OkStatus();
    for (const std::string& id : all) {
      if (random.Below(2) == 0) scene.on_this_host.insert(id);
      for (const TransportCaps& caps : {kGrpcCaps, kShmCaps, kC10dCaps, kUcxCaps}) {
        if (random.Below(3) == 0) scene.avoided.insert(HolderKey(id, caps));
      }
    }
    std::multiset<std::string> called, memory, ucx;
    int files = 0, broadcasts = 0;
    for (const PlannedHolder& planned : scene.Plan()) {
      EXPECT_FALSE(planned.why.empty()) << "seed " << seed;
      if (planned.transport->reads_memory) ucx.insert(planned.id);
      else if (planned.transport->same_host) memory.insert(planned.id);
      else if (planned.transport->needs_folder) ++files;
      else if (planned.transport->broadcasts) ++broadcasts;
      else called.insert(planned.id);
    }
    EXPECT_EQ(called.size(), scene.trainer ? 4u : 3u) << "seed " << seed;
    EXPECT_EQ(files, scene.folder ? 1 : 0) << "seed " << seed;
    const bool broadcast_failed = scene.avoided.contains(HolderKey("", kC10dCaps));
    EXPECT_EQ(broadcasts, scene.broadcast && scene.trainer && memory.empty() && ucx.empty() &&
                              !broadcast_failed)
        << "seed " << seed;
    ASSERT_LE(ucx.size(), scene.ucx ? 1u : 0u) << "seed " << seed;
    for (const std::string& id : ucx) {
      EXPECT_NE(id, "last") << "seed " << seed << ": the two would wait for each other";
      EXPECT_FALSE(scene.avoided.contains(HolderKey(id, kUcxCaps))) << "seed " << seed;
    }
    ASSERT_LE(memory.size(), scene.shared_memory ? 1u : 0u) << "seed " << seed;
    for (const std::string& id : memory) {
      EXPECT_TRUE(scene.on_this_host.contains(id)) << "seed " << seed;
      EXPECT_FALSE(scene.avoided.contains(HolderKey(id, kShmCaps))) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace sluice
