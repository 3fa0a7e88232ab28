#include "common/weights/object_stage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/shm/segment.h"

namespace sluice {
namespace {

ObjectStage::Object StageObject(const std::string& id, const std::string& bytes) {
  return {id, std::make_shared<const std::string>(bytes)};
}

TEST(ObjectStageTest, AnObjectIsCopiedOnceForAllWhoAskForIt) {
  ObjectStage stage;
  const absl::Duration now = absl::Seconds(1);
  const auto a = StageObject("a", "first"), b = StageObject("b", "second"),
             c = StageObject("c", "third");
  const auto places = stage.Stage("job", {a, b, a}, now);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ((*places)[0].offset, (*places)[2].offset);
  EXPECT_EQ(stage.segments(), 1u);
  EXPECT_EQ(stage.bytes(), 11u);

  const auto more = stage.Stage("job", {b, c}, now);
  ASSERT_TRUE(more.ok());
  EXPECT_EQ((*more)[0].segment, (*places)[1].segment);
  EXPECT_EQ((*more)[0].offset, (*places)[1].offset);
  EXPECT_EQ(stage.bytes(), 16u);
  ASSERT_TRUE(stage.Stage("job", {a, b, c}, now).ok());
  EXPECT_EQ(stage.segments(), 2u);
}

TEST(ObjectStageTest, ASegmentHoldsTheBytesAndNobodyCanChangeThem) {
  ObjectStage stage;
  const auto places =
      *stage.Stage("job", {StageObject("a", "first"), StageObject("b", "second")}, {});
  const ObjectStage::Segment* const segment = stage.Find("job", places[0].segment, {});
  ASSERT_NE(segment, nullptr);
  const auto mapped = shm::Segment::Map(Fd(fcntl(segment->fd.get(), F_DUPFD_CLOEXEC, 0)),
                                        segment->bytes, /*writable=*/false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_TRUE(mapped->is_constant());
  EXPECT_EQ(std::string(mapped->data() + places[1].offset, places[1].size), "second");
  EXPECT_EQ(pwrite(segment->fd.get(), "x", 1, 0), -1);
  EXPECT_NE(ftruncate(segment->fd.get(), 0), 0);
  EXPECT_EQ(mmap(nullptr, 8, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd.get(), 0), MAP_FAILED);
}

TEST(ObjectStageTest, AnotherJobGetsNeitherTheSegmentNorThePlace) {
  ObjectStage stage;
  const auto mine = *stage.Stage("job", {StageObject("a", "first")}, {});
  EXPECT_EQ(stage.Find("other", mine[0].segment, {}), nullptr);
  const auto theirs = *stage.Stage("other", {StageObject("a", "first")}, {});
  EXPECT_NE(mine[0].segment, theirs[0].segment);
}

TEST(ObjectStageTest, WhatIsNotUsedForAWhileIsDropped) {
  ObjectStage stage;
  absl::Duration now = absl::Seconds(100);
  const auto a = StageObject("a", "first"), b = StageObject("b", "second");
  const auto places = *stage.Stage("job", {a}, now);
  ASSERT_TRUE(stage.Stage("job", {b}, now).ok());
  now += ObjectStage::kKeep;
  stage.DropUnused(now);
  EXPECT_EQ(stage.segments(), 2u);
  ASSERT_TRUE(stage.Stage("job", {b}, now).ok());
  now += absl::Milliseconds(1);
  stage.DropUnused(now);
  EXPECT_EQ(stage.segments(), 1u);
  EXPECT_EQ(stage.Find("job", places[0].segment, now), nullptr);
  EXPECT_NE((*stage.Stage("job", {a}, now))[0].segment, places[0].segment) << "it is staged anew";
}

TEST(ObjectStageTest, OfTooManySegmentsTheLeastRecentlyUsedAreDropped) {
  ObjectStage stage;
  absl::Duration now = absl::Seconds(100);
  uint32_t first = 0;
  for (size_t i = 0; i < ObjectStage::kMostSegments + 5; ++i) {
    now += absl::Microseconds(1);
    const auto places = stage.Stage("job", {StageObject(absl::StrCat("object ", i), "bytes")}, now);
    ASSERT_TRUE(places.ok()) << places.status();
    if (i == 0) first = (*places)[0].segment;
    ASSERT_NE(stage.Find("job", first, now + absl::Microseconds(1)), nullptr) << i;
    stage.DropUnused(now);
  }
  EXPECT_EQ(stage.segments(), ObjectStage::kMostSegments);
  EXPECT_EQ(stage.Find("job", first + 1, now), nullptr);
}

TEST(ObjectStageTest, OfTooManyBytesTheLeastRecentlyUsedAreDroppedButNeverTheLastOnes) {
  ObjectStage stage(/*most_bytes=*/10);
  absl::Duration now = absl::Seconds(100);
  const auto stage_bytes = [&](const std::string& id, size_t bytes) {
    now += absl::Microseconds(1);
    const auto places = stage.Stage("job", {StageObject(id, std::string(bytes, 'x'))}, now);
    stage.DropUnused(now);
    return (*places)[0].segment;
  };
  const uint32_t a = stage_bytes("a", 4), b = stage_bytes("b", 4);
  EXPECT_EQ(stage_bytes("a", 4), a) << "both have room";
  stage_bytes("c", 4);
  EXPECT_EQ(stage.bytes(), 8u);
  EXPECT_EQ(stage.Find("job", b, now), nullptr) << "it was used least recently";
  const uint32_t large = stage_bytes("large", 100);
  EXPECT_EQ(stage.segments(), 1u);
  EXPECT_NE(stage.Find("job", large, now), nullptr);
}

}  // namespace
}  // namespace sluice
