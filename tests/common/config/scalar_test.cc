#include "common/config/scalar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice::config {
namespace {

TEST(Scalar, DurationsReadBackAsPrinted) {
  for (const char* text : {"0s", "30s", "10m", "36h", "250ms", "3us", "7ns"}) {
    ASSERT_TRUE(ParseDurationText(text).ok()) << text;
    EXPECT_EQ(DurationText(*ParseDurationText(text)), text);
  }
  EXPECT_EQ(*ParseDurationText("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseDurationText("2d"), absl::Hours(48));
}

TEST(Scalar, SizesReadBackAsPrinted) {
  for (const char* text : {"0B", "1B", "1000B", "512MiB", "8GiB", "3TiB"}) {
    ASSERT_TRUE(ParseSizeText(text).ok()) << text;
    EXPECT_EQ(SizeText(*ParseSizeText(text)), text);
  }
  EXPECT_EQ(*ParseSizeText("1.5KiB"), 1536u);
}

TEST(Scalar, AMissingOrUnknownUnitIsToldApartFromNonsense) {
  EXPECT_EQ(ReasonOf(ParseDurationText("30").status()), "UNIT");
  EXPECT_EQ(ReasonOf(ParseDurationText("30 seconds").status()), "UNIT");
  EXPECT_EQ(ReasonOf(ParseSizeText("8GB").status()), "UNIT");
  EXPECT_EQ(ReasonOf(ParseDurationText("soon").status()), "");
  EXPECT_EQ(ReasonOf(ParseSizeText("-1MiB").status()), "");
}

TEST(Scalar, NumbersKeepTheirValueInFewDigits) {
  EXPECT_EQ(NumberText(1e-6), "1e-6");
  EXPECT_EQ(NumberText(0.28), "0.28");
  EXPECT_EQ(NumberText(1e20), "1e20");
  EXPECT_EQ(NumberText(1.0 / 3), "0.33333333333333331");
}

TEST(Scalar, TextIsQuotedWhereYamlWouldReadSomethingElse) {
  EXPECT_EQ(StringText("/a/b-c.json"), "/a/b-c.json");
  EXPECT_EQ(StringText("none"), "\"none\"");
  EXPECT_EQ(StringText("12"), "\"12\"");
  EXPECT_EQ(StringText("{question}\n"), "\"{question}\\n\"");
}

}  // namespace
}  // namespace sluice::config
