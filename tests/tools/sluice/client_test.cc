#include "tools/sluice/client.h"

#include <gtest/gtest.h>

#include <atomic>

#include "common/base/clock.h"
#include "common/rpc/server.h"
#include "sluice/job/v1/job.grpc.pb.h"

namespace sluice::cli {
namespace {

job::v1::JobStatus StatusOf(job::v1::JobState state, const char* code, const char* message) {
  job::v1::JobStatus status;
  status.set_name("digits");
  status.set_state(state);
  status.set_code(code);
  status.set_message(message);
  return status;
}

TEST(StateLine, LeavesTheCauseOfAFailureToTheErrorLine) {
  const auto finishing = StatusOf(job::v1::JOB_STATE_FINISHING, "SLUICE-CTL-0010", "no row");
  const auto failed = StatusOf(job::v1::JOB_STATE_FAILED, "SLUICE-CTL-0010", "no row");
  EXPECT_EQ(StateLine(finishing), "digits FINISHING");
  EXPECT_EQ(StateLine(failed), "digits FAILED");
  EXPECT_EQ(ErrorLine(failed), "error SLUICE-CTL-0010: job digits FAILED: no row");
}

TEST(StateLine, TellsWhyAJobIsInAnyOtherState) {
  EXPECT_EQ(StateLine(StatusOf(job::v1::JOB_STATE_RUNNING, "", "")), "digits RUNNING");
  EXPECT_EQ(
      StateLine(StatusOf(job::v1::JOB_STATE_RECOVERING, "SLUICE-CTL-0011", "queue q is lost")),
      "digits RECOVERING: queue q is lost");
  EXPECT_EQ(StateLine(StatusOf(job::v1::JOB_STATE_FINISHING, "", "ended by limits.wall 1h")),
            "digits FINISHING: ended by limits.wall 1h");
}

// A controller that goes away an hour after the first Watch has begun, and then comes back. The job
// has ended meanwhile.
class AwayOnceController : public job::v1::JobService::CallbackService {
 public:
  explicit AwayOnceController(ManualClock* clock) : clock_(clock) {}

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const job::v1::GetRequest*,
                                job::v1::JobStatus* response) override {
    *response = Status();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerWriteReactor<job::v1::WatchResponse>* Watch(grpc::CallbackServerContext*,
                                                          const job::v1::WatchRequest*) override {
    if (was_away_) return new Stream(Status());
    clock_->Advance(absl::Hours(1));
    was_away_ = true;
    return new Stream(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the connection broke"));
  }

 private:
  // Sends one status, or breaks.
  class Stream : public grpc::ServerWriteReactor<job::v1::WatchResponse> {
   public:
    explicit Stream(const job::v1::JobStatus& status) {
      *response_.mutable_status() = status;
      StartWriteAndFinish(&response_, {}, grpc::Status::OK);
    }
    explicit Stream(const grpc::Status& status) { Finish(status); }
    void OnDone() override { delete this; }

   private:
    job::v1::WatchResponse response_;
  };

  job::v1::JobStatus Status() const {
    return StatusOf(was_away_ ? job::v1::JOB_STATE_SUCCEEDED : job::v1::JOB_STATE_RUNNING, "", "");
  }

  ManualClock* const clock_;
  std::atomic<bool> was_away_ = false;
};

TEST(FollowJob, AControllerThatGoesAwayAfterALongWatchHasTheWholePatienceToComeBack) {
  ManualClock clock;
  AwayOnceController controller(&clock);
  const auto server = rpc::Server::Start({}, {&controller});
  ASSERT_TRUE(server.ok()) << server.status();

  const auto channel = (*server)->InProcessChannel();
  const absl::StatusOr<job::v1::JobStatus> last =
      FollowJob(*channel, "digits", nullptr, absl::Minutes(1), {}, {}, &clock);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->state(), job::v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace sluice::cli
