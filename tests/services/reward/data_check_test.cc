#include "services/reward/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::reward {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A job with one data file, whose answers the verifier `exact` scores.
class DataCheckTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<std::string>> Check(const std::string& rows) {
    job::v1::DataSource& source = *spec_.mutable_data()->add_train();
    source.set_name("sums");
    source.set_path(testing_data::TempPath("sums.jsonl"));
    source.set_prompt("q");
    source.set_answer("a");
    EXPECT_TRUE(WriteFileAtomic(source.path(), rows).ok());

    auto scorer = Scorer::Make(
        {{.name = "right", .verifier = "exact", .data_sources = data_sources_}}, Combine::kSum);
    EXPECT_TRUE(scorer.ok()) << scorer.status();
    return CheckData(spec_, *scorer);
  }

  job::v1::JobSpec spec_;
  std::vector<std::string> data_sources_;
};

TEST_F(DataCheckTest, NumbersAreGolds) {
  const auto remarks = Check("{\"q\": \"1+1\", \"a\": 2}\n{\"q\": \"5/2\", \"a\": 2.5}\n");
  ASSERT_TRUE(remarks.ok()) << remarks.status();
  EXPECT_THAT(*remarks, IsEmpty());
}

TEST_F(DataCheckTest, ASourceWithoutOneGoldIsRefusedByNameWithItsFirstRow) {
  const absl::Status refused =
      Check("{\"q\": \"1+1\", \"a\": null}\n{\"q\": \"1+2\", \"a\": null}\n").status();
  EXPECT_EQ(ReasonOf(refused), "UNSCORABLE");
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("data source sums"), HasSubstr("sums.jsonl:1: reward right"),
                    HasSubstr("`answer` is null, wanted: a text or a number"),
                    HasSubstr("`answer` is column \"a\"")));
}

TEST_F(DataCheckTest, RowsWithoutAGoldAreCountedAndTheFirstIsNamed) {
  const auto remarks =
      Check("{\"q\": \"1\", \"a\": 1}\n{\"q\": \"2\", \"a\": null}\n{\"q\": \"3\", \"a\": {}}\n");
  ASSERT_TRUE(remarks.ok()) << remarks.status();
  EXPECT_THAT(*remarks, ElementsAre(AllOf(HasSubstr("data source sums: answers to 2 of 3 rows"),
                                          HasSubstr("sums.jsonl:2: "))));
}

TEST_F(DataCheckTest, ASourceThatNoRewardScoresIsRefused) {
  data_sources_ = {"others"};
  const absl::Status refused = Check("{\"q\": \"1\", \"a\": 1}\n").status();
  EXPECT_EQ(ReasonOf(refused), "UNSCORABLE");
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("no entry of reward.rewards scores data source sums"));
}

TEST_F(DataCheckTest, AFileThatCannotBeReadIsTheQueuesToReport) {
  const auto remarks = Check("no JSON\n");
  ASSERT_TRUE(remarks.ok()) << remarks.status();
  EXPECT_THAT(*remarks, IsEmpty());
}

}  // namespace
}  // namespace sluice::reward
