#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

// `sluice eval` evaluates a version of a job that goes on training.
namespace sluice::integration {
namespace {

using testing::HasSubstr;

class EvalJobTest : public testing::Test {
 protected:
  void Run() {
    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
    auto job = SubmitDigits(&cluster_, /*steps=*/1000000);
    ASSERT_EQ(job.status(), absl::OkStatus());
    job_ = *std::move(job);
    ASSERT_EQ(job_->AwaitStep(5, kLong), absl::OkStatus());
  }

  absl::StatusOr<Finished> Eval(const std::string& model) {
    return cluster_.Sluice(
        {"eval",         model,
         "--data",       SLUICE_SOURCE_DIR "/configs/examples/digits/heldout.jsonl",
         "--prompt",     "digits",
         "--answer",     "digits",
         "--format",     "{digits}=",
         "--verifier",   "text",
         "--args",       R"({"property": "reversed"})",
         "--max-tokens", "7",
         "--rows",       "50",
         "-o",           "json"});
  }

  Cluster cluster_;
  std::unique_ptr<Job> job_;
};

TEST_F(EvalJobTest, TheNewestVersionAnswersWhileTheJobTrainsOn) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const auto said = Eval(job_->id());
  ASSERT_EQ(said.status(), absl::OkStatus());
  ASSERT_EQ(said->exit, 0) << said->err;

  const nlohmann::json result = nlohmann::json::parse(said->out);
  EXPECT_EQ(result["rows"], 50);

  const std::string version = result["version"];
  int64_t number = 0;
  ASSERT_EQ(std::sscanf(version.c_str(), "1:%ld", &number), 1) << version;
  EXPECT_GE(number, 5);
  EXPECT_EQ(job_->AwaitStep(number + 5, kLong), absl::OkStatus());
}

TEST_F(EvalJobTest, AVersionThatIsGoneIsRefusedWithThoseThatAreThere) {
  ASSERT_NO_FATAL_FAILURE(Run());
  const auto gone = Eval(absl::StrCat(job_->id(), "@0"));
  ASSERT_EQ(gone.status(), absl::OkStatus());
  EXPECT_NE(gone->exit, 0);
  EXPECT_THAT(gone->err, HasSubstr("the trainer no longer keeps version 0; it has "));
  EXPECT_THAT(gone->err, HasSubstr("`sluice ckpt verify "));
  EXPECT_THAT(Eval(absl::StrCat(job_->id(), "@999999999"))->err,
              HasSubstr("the trainer has not made version 999999999 yet; it has "));
  EXPECT_THAT(Eval(absl::StrCat(job_->id(), "@-1"))->err,
              HasSubstr("'-1' is no version; versions count from 0"));

  const auto word = Eval(absl::StrCat(job_->id(), "@best"));
  EXPECT_THAT(word->err, HasSubstr("'best' is no version"));
  EXPECT_THAT(Eval("no-such-job")->err, HasSubstr("no-such-job is no directory, and as a job"));
}

}  // namespace
}  // namespace sluice::integration
