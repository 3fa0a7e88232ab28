#include "tests/fault/network/line.h"

#include <gtest/gtest.h>

namespace sluice::fault {
namespace {

constexpr absl::Duration kNow = absl::Seconds(100);

TEST(LineTest, AGoodLineDeliversAtOnceAndInOrder) {
  Line line;
  line.Send("first", kNow);
  line.Send("second", kNow);

  EXPECT_EQ(line.Receive(kNow), "first");
  EXPECT_EQ(line.Receive(kNow), "second");
  EXPECT_EQ(line.Receive(kNow), std::nullopt);
  EXPECT_EQ(line.NextArrival(), absl::InfiniteDuration());
}

TEST(LineTest, ADelayedFrameArrivesAfterTheDelayAndNotBefore) {
  Line line;
  line.SetQuality({.delay = absl::Milliseconds(200)});
  line.Send("frame", kNow);

  EXPECT_EQ(line.NextArrival(), kNow + absl::Milliseconds(200));
  EXPECT_EQ(line.Receive(kNow + absl::Milliseconds(199)), std::nullopt);
  EXPECT_EQ(line.Receive(kNow + absl::Milliseconds(200)), "frame");
}

TEST(LineTest, AFrameThatIsSentAfterADelayHasEndedDoesNotOvertake) {
  Line line;
  line.SetQuality({.delay = absl::Milliseconds(200)});
  line.Send("slow", kNow);
  line.SetQuality({});
  line.Send("quick", kNow);

  EXPECT_EQ(line.Receive(kNow), std::nullopt);
  EXPECT_EQ(line.Receive(kNow + absl::Milliseconds(200)), "slow");
  EXPECT_EQ(line.Receive(kNow + absl::Milliseconds(200)), "quick");
}

TEST(LineTest, ALimitedRateCarriesFramesOneAfterTheOther) {
  Line line;
  line.SetQuality({.bytes_per_second = 1000});
  line.Send(std::string(500, 'a'), kNow);
  line.Send(std::string(500, 'b'), kNow);

  EXPECT_EQ(line.NextArrival(), kNow + absl::Milliseconds(500));
  EXPECT_TRUE(line.Receive(kNow + absl::Milliseconds(500)).has_value());
  EXPECT_EQ(line.NextArrival(), kNow + absl::Seconds(1));
}

TEST(LineTest, WhatComesWhileTheBufferIsFullIsLost) {
  constexpr int kFrames = 1000;
  Line line;
  line.SetQuality({.bytes_per_second = 1'000'000});
  for (int i = 0; i < kFrames; ++i) line.Send(std::string(1000, 'x'), kNow);

  int arrived = 0;
  while (line.Receive(kNow + absl::Hours(1))) ++arrived;
  // The buffer's frames, and the one that is being sent.
  EXPECT_EQ(arrived, Line::kBufferBytes / 1000 + 1);
}

TEST(LineTest, ACutLineLosesWhatIsSentAndDeliversWhatWasOnItsWay) {
  Line line;
  line.SetQuality({.delay = absl::Seconds(1)});
  line.Send("before", kNow);
  line.SetQuality({.passes = false});
  line.Send("lost", kNow);

  EXPECT_EQ(line.Receive(kNow + absl::Seconds(1)), "before");
  EXPECT_EQ(line.NextArrival(), absl::InfiniteDuration());
}

}  // namespace
}  // namespace sluice::fault
