#include "common/shm/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "common/shm/block.h"

namespace sluice::shm {
namespace {

Fd Duplicate(const Segment& segment) { return Fd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0)); }

TEST(SegmentTest, TwoMappingsShareTheBytes) {
  auto mine = Segment::Create("test", 1 << 20, Access::kEveryone, false);
  ASSERT_TRUE(mine.ok()) << mine.status();
  auto theirs = Segment::Map(Duplicate(*mine), 1 << 20, true);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  std::strcpy(theirs->data() + 5000, "hello");
  EXPECT_STREQ(mine->data() + 5000, "hello");
}

TEST(SegmentTest, ItsSizeCannotChange) {
  auto segment = Segment::Create("test", 1 << 20, Access::kEveryone, false);
  ASSERT_TRUE(segment.ok());
  EXPECT_NE(ftruncate(segment->fd(), 0), 0);
  EXPECT_NE(ftruncate(segment->fd(), 2 << 20), 0);
}

TEST(SegmentTest, ADescriptorOfAnotherSizeOrThatCanShrinkIsRefused) {
  auto segment = Segment::Create("test", 1 << 20, Access::kEveryone, false);
  ASSERT_TRUE(segment.ok());
  EXPECT_EQ(Segment::Map(Duplicate(*segment), 2 << 20, true).status().code(),
            absl::StatusCode::kInvalidArgument);

  Fd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), 4096), 0);
  EXPECT_EQ(Segment::Map(std::move(loose), 4096, true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Segment::Map(Fd(open("/dev/zero", O_RDWR)), 4096, true).ok());
}

TEST(SegmentTest, AnOwnersSegmentIsForReadingAlone) {
  auto segment = Segment::Create("test", 4096, Access::kOwner, true);
  ASSERT_TRUE(segment.ok());
  segment->data()[0] = 'x';
  EXPECT_FALSE(Segment::Map(Duplicate(*segment), 4096, true).ok());

  auto reader = Segment::Map(Duplicate(*segment), 4096, false);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->data()[0], 'x');
  EXPECT_EQ(pwrite(reader->fd(), "y", 1, 0), -1);
}

TEST(SegmentTest, SlicesOutOfBoundsAreSeen) {
  auto segment = Segment::Create("test", 1 << 20, Access::kOwner, false);
  ASSERT_TRUE(segment.ok());
  const uint64_t end = 1 << 20;

  EXPECT_TRUE(InBounds(*segment, {.block = 0, .offset = 64, .length = end - 64}));
  EXPECT_FALSE(InBounds(*segment, {.block = 0, .offset = 64, .length = end - 63}));
  // Offset 63 is inside the header of the block.
  EXPECT_FALSE(InBounds(*segment, {.block = 0, .offset = 63, .length = 1}));

  // No block begins at 8.
  EXPECT_FALSE(InBounds(*segment, {.block = 8, .offset = 128, .length = 1}));
  EXPECT_FALSE(InBounds(*segment, {.block = end, .offset = end + 64, .length = 0}));
  EXPECT_FALSE(InBounds(*segment, {.block = 0, .offset = ~uint64_t{0}, .length = 2}));
  EXPECT_FALSE(InBounds(*segment, {.block = ~uint64_t{63}, .offset = 128, .length = 2}));
}

}  // namespace
}  // namespace sluice::shm
