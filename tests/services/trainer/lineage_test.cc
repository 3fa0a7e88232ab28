#include "services/trainer/core/lineage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "common/base/digest.h"

namespace sluice::trainer {
namespace {

Id16 GroupWith(uint8_t ordinal) {
  Id16 id;
  id.bytes[15] = ordinal;
  return id;
}

std::string Text(const std::vector<LineageEntry>& entries) {
  std::string text;
  for (const LineageEntry& entry : entries) text += LineageLine(entry);
  return text;
}

TEST(LineageTest, ALineComesBackAsItWasWritten) {
  for (const LineageEntry& entry :
       {LineageEntry{7, GroupWith(3), 2, 1, 0xffffffffu, {}, ""},
        LineageEntry{8, GroupWith(4), 0, 3, 5, {{4, 2}, {9, 1}}, "nonfinite \"x\""}}) {
    const absl::StatusOr<LineageEntry> back = ParseLineageLine(LineageLine(entry));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, entry);
  }
}

TEST(LineageTest, ABrokenLineIsRefused) {
  for (const char* line : {"", "{", "[]", "{\"k\":1}",
                           "{\"k\":1,\"group\":\"zz\",\"member\":0,\"attempt\":1,\"crc\":1}"}) {
    EXPECT_EQ(ParseLineageLine(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
}

TEST(LineageTest, CanonicalBytesArePackedLittleEndian) {
  const std::string bytes =
      CanonicalBytes({LineageEntry{0, GroupWith(9), 1, 2, 0x04030201, {{0x0102, 3}}, ""}});
  const std::string expected = GroupWith(9).str() +
                               std::string("\1\0\0\0\2\0\0\0\1\2\3\4\1\0\0\0", 16) +
                               std::string("\2\1\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 16);
  EXPECT_EQ(bytes, expected);
}

TEST(LineageTest, TheCheckRecomputesTheChainStepByStep) {
  const LineageEntry a{0, GroupWith(1), 0, 1, 11, {}, ""}, b{0, GroupWith(1), 1, 1, 12, {}, ""},
      c{2, GroupWith(2), 0, 2, 13, {{1, 1}}, ""};
  std::string hash = FirstLedgerHash();
  hash = NextLedgerHash(hash, 0, CanonicalBytes({a, b}));
  hash = NextLedgerHash(hash, 1, "");
  hash = NextLedgerHash(hash, 2, CanonicalBytes({c}));

  const absl::StatusOr<LineageSummary> summary = CheckLineage(Text({a, b, c}), 3);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->trajectories, 3);
  EXPECT_EQ(summary->hash, hash);
}

TEST(LineageTest, TheChainStartsAtZeroBytesAndHashesTheStepAsI64) {
  EXPECT_EQ(NextLedgerHash(FirstLedgerHash(), 1, "x"),
            Sha256(std::string(32, '\0') + std::string("\1\0\0\0\0\0\0\0x", 9)));
}

TEST(LineageTest, ATrajectoryThatTrainsTwiceIsFound) {
  const LineageEntry a{0, GroupWith(1), 0, 1, 11, {}, ""}, again{1, GroupWith(1), 0, 2, 11, {}, ""};
  const absl::Status status = CheckLineage(Text({a, again}), 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "line 2")) << status;
}

TEST(LineageTest, ATextInPiecesIsCheckedAsInOne) {
  const LineageEntry a{0, GroupWith(1), 0, 1, 11, {}, ""},
      b{1, GroupWith(2), 1, 1, 12, {{1, 1}}, ""};
  const std::string text = Text({a, b}), whole = CheckLineage(text, 2)->hash;

  for (size_t cut = 0; cut <= text.size(); ++cut) {
    LineageCheck check(2);
    ASSERT_TRUE(check.Add(text.substr(0, cut)).ok());
    ASSERT_TRUE(check.Add(text.substr(cut)).ok());
    EXPECT_EQ(check.Finish()->hash, whole) << "cut at " << cut;
  }
}

TEST(LineageTest, ATextThatEndsInsideALineIsDamage) {
  const std::string text = Text({LineageEntry{0, GroupWith(1), 0, 1, 11, {}, ""}});
  const absl::Status status = CheckLineage(text.substr(0, text.size() - 1), 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "line 1")) << status;
}

TEST(LineageTest, StepsOutOfOrderOrBeyondTheVersionAreFound) {
  const LineageEntry a{1, GroupWith(1), 0, 1, 11, {}, ""}, b{0, GroupWith(2), 0, 1, 11, {}, ""};
  EXPECT_EQ(CheckLineage(Text({a, b}), 2).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CheckLineage(Text({a}), 1).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace sluice::trainer
