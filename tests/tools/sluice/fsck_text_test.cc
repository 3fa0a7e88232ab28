#include "tools/sluice/fsck_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kId[] = "00112233445566778899aabbccddeeff";

queue::FsckJob WholeJob() {
  queue::FsckJob job;
  job.job = kId;
  job.name = "digits";
  job.durability = queue::Durability::kFull;
  job.snapshot = 3411;
  job.last = 3439;
  job.events = 28;
  job.bytes = 1258291;
  job.version = 74;
  job.groups = 38;
  job.end_file = "data/jobs/x/log-1.seg";
  job.end_offset = 512;
  job.ledger.accepted = 8;
  job.ledger.durable = 4;
  job.ledger.live = 3;
  job.ledger.dropped = {{"stale", 1}, {"lost", 0}};
  return job;
}

TEST(FsckTextTest, AnIntactDirectoryIsShownAsOneLineAndOneLedgerForEachJob) {
  const queue::FsckReport report{{WholeJob()}};
  EXPECT_EQ(FsckText(report, "data"),
            "JOB     ID                                LEVEL  VERSION  GROUPS  SNAPSHOT  LAST  "
            "REPLAYED  LOG      STATE\n"
            "digits  00112233445566778899aabbccddeeff  full   74       38      3411      3439  28  "
            "      1.2 MiB  ok\n"
            "\n"
            "digits: accepted 8 = durable 4 + applied 0 + live 3 + dropped 1   balanced\n");
  EXPECT_EQ(FsckText({}, "data"), "data holds no jobs\n");
}

TEST(FsckTextTest, DamageIsNamedByFileAndOffsetWithWhatIsWholeAndWhatToDo) {
  queue::FsckJob job = WholeJob();
  job.status = Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                     "data/jobs/x/log-1.seg at offset 512: the record of position 3440 is damaged");

  const std::string text = FsckText({{job}}, "data");
  EXPECT_THAT(text, HasSubstr("  DAMAGED\n"));
  EXPECT_THAT(
      text,
      HasSubstr(absl::StrCat(
          "\ndigits (", kId,
          ")\n"
          "  damage: data/jobs/x/log-1.seg at offset 512: the record of position 3440 is damaged\n"
          "  intact up to: position 3439, data/jobs/x/log-1.seg at offset 512\n"
          "  you could: check the disk; restore data/jobs/",
          kId, " from a backup")));
  EXPECT_THAT(text, Not(HasSubstr("balanced")));
}

TEST(FsckTextTest, AnotherBuildsLogSaysWhichBuildToStart) {
  queue::FsckJob job = WholeJob();
  job.status = ErrorWith(absl::StatusCode::kFailedPrecondition,
                         {.reason = "NEWER_FORMAT", .hint = "start the build that wrote it"},
                         "data/x is of format 9");
  EXPECT_THAT(FsckText({{job}}, "data"), HasSubstr("  you could: start the build that wrote it\n"));
}

TEST(FsckTextTest, ABrokenRuleOfAWholeLogIsAFaultOfTheBuild) {
  queue::FsckJob job = WholeJob();
  job.violations = {"the ledger is off by 1"};
  const std::string text = FsckText({{job}}, "data");
  EXPECT_THAT(text, HasSubstr("  broken rule: the ledger is off by 1\n"));
  EXPECT_THAT(text, HasSubstr("report it"));
}

TEST(FsckTextTest, ATornEndIsHarmless) {
  queue::FsckJob job = WholeJob();
  job.torn = true;
  job.remarks = {"left aside: a snapshot"};

  const std::string text = FsckText({{job}}, "data");
  EXPECT_THAT(text, HasSubstr("\nharmless:\n"));
  EXPECT_THAT(text, HasSubstr("never acknowledged"));
  EXPECT_THAT(text, HasSubstr("left aside: a snapshot\n"));
  EXPECT_THAT(text, Not(HasSubstr("DAMAGED")));
}

TEST(FsckTextTest, JsonHasEveryFieldAndNoErrorWhereAllIsWell) {
  queue::FsckJob damaged = WholeJob();
  damaged.status = Error(absl::StatusCode::kDataLoss, "BAD_CRC", "there");

  const auto json = FsckJson({{WholeJob(), damaged}}, "data");
  EXPECT_FALSE(json["ok"].get<bool>());
  EXPECT_EQ(json["jobs"][0].dump(),
            absl::StrCat(
                R"({"job":")", kId,
                R"(","name":"digits","durability":"full","ok":true,"error":null,"violations":[],)"
                R"("remarks":[],"snapshot":3411,"last":3439,)"
                R"("end_file":"data/jobs/x/log-1.seg","end_offset":512,"torn":false,"events":28,)"
                R"("log_bytes":1258291,"stored_bytes":0,"version":74,"groups":38,)"
                R"("ledger":{"accepted":8,"durable":4,"applied":0,"live":3,"dropped":{"lost":0,)"
                R"("stale":1},"durable_version":0,"hash":")",
                std::string(64, '0'), R"(","event":0}})"));
  EXPECT_EQ(json["jobs"][1]["error"]["reason"], "BAD_CRC");
  EXPECT_EQ(json["jobs"][1]["error"]["message"], "there");
}

}  // namespace
}  // namespace sluice::cli
