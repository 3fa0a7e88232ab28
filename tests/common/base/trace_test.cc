#include "common/base/trace.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr char kId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kValid[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceTest, AHeaderThatIsWrittenReadsAsTheSameTrace) {
  const Trace trace = MakeTrace();
  EXPECT_EQ(trace.id.size(), 32u);
  EXPECT_NE(trace.id, MakeTrace().id);

  const std::string header = FormatTraceparent(trace);
  EXPECT_EQ(header.size(), 55u);
  EXPECT_NE(header, FormatTraceparent(trace)) << "each call has a parent id of its own";
  EXPECT_EQ(ParseTraceparent(header)->id, trace.id);
  EXPECT_FALSE(ParseTraceparent(header)->sampled);
  EXPECT_TRUE(ParseTraceparent(FormatTraceparent({.id = kId, .sampled = true}))->sampled);
}

TEST(TraceTest, AHeaderOfALaterVersionIsReadAsFarAsItIsKnown) {
  EXPECT_EQ(ParseTraceparent(kValid)->id, kId);
  EXPECT_TRUE(ParseTraceparent(kValid)->sampled);
  std::string later = kValid;
  later.replace(0, 2, "cc");
  EXPECT_EQ(ParseTraceparent(later)->id, kId);
  EXPECT_EQ(ParseTraceparent(later + "-what-comes.later")->id, kId);
  EXPECT_FALSE(ParseTraceparent(later + ".what-comes-later"));
  EXPECT_FALSE(ParseTraceparent(absl::StrCat(later, "-", std::string(300, 'a'))));
}

TEST(TraceTest, AMalformedHeaderIsRefused) {
  const std::string id = kId, parent = "00f067aa0ba902b7", zeros(32, '0');
  const std::string malformed[] = {
      "",
      "00",
      absl::StrCat("00-", id, "-", parent),               // No flags.
      absl::StrCat("00-", id, "-", parent, "-1"),         // Too short.
      absl::StrCat("00-", id, "-", parent, "-01-extra"),  // Version 00 has no more.
      absl::StrCat("00-", id, "-", parent, "-01 "),
      absl::StrCat(" 00-", id, "-", parent, "-01"),
      absl::StrCat("ff-", id, "-", parent, "-01"),
      absl::StrCat("0g-", id, "-", parent, "-01"),
      absl::StrCat("00-", zeros, "-", parent, "-01"),
      absl::StrCat("00-", id, "-", zeros.substr(16), "-01"),
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e473\n-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0X",
      "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
      std::string(55, '\0'),
      std::string(1 << 20, '0'),
  };
  for (const std::string& header : malformed)
    EXPECT_FALSE(ParseTraceparent(header)) << header.substr(0, 80);
}

TEST(TraceTest, TheInnermostScopeOfTheThreadCounts) {
  EXPECT_TRUE(CurrentTrace().empty());
  const Trace outer = MakeTrace(), inner = MakeTrace();
  const TraceScope scope(outer);
  EXPECT_EQ(CurrentTrace().id, outer.id);
  {
    const TraceScope nested(inner);
    EXPECT_EQ(CurrentTrace().id, inner.id);
    const TraceScope none{Trace()};
    EXPECT_EQ(CurrentTrace().id, inner.id) << "an empty trace changes nothing";
  }
  EXPECT_EQ(CurrentTrace().id, outer.id);
  std::thread([] { EXPECT_TRUE(CurrentTrace().empty()); }).join();
}

TEST(TraceTest, TheTraceOfTheProcessIsThatOfAllThreadsWithoutAScope) {
  const Trace process = MakeTrace(), own = MakeTrace();
  SetProcessTrace(process);
  std::thread([&] { EXPECT_EQ(CurrentTrace().id, process.id); }).join();
  {
    const TraceScope scope(own);
    EXPECT_EQ(CurrentTrace().id, own.id);
  }
  SetProcessTrace({});
  EXPECT_TRUE(CurrentTrace().empty());
}

}  // namespace
}  // namespace sluice
