#include "services/reward/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "tests/common/queue_client/fake_queue.h"

namespace sluice::reward {
namespace {

using testing::ElementsAre;

constexpr char kMessages[] = R"([{"role": "assistant", "content": "42"}])";

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    served_.queue.on_renew = [](const queue::v1::RenewRequest&, queue::v1::RenewResponse* answer) {
      *answer->mutable_ttl() = rpc::ToProto(absl::Hours(1));
      return absl::OkStatus();
    };
    served_.queue.on_release = [this](const queue::v1::ReleaseRequest& request) {
      released_.Push({request.leases().begin(), request.leases().end()});
      return absl::OkStatus();
    };
    served_.queue.on_put = [this](FakeQueue::PutStreamEnd& stream,
                                  const queue::v1::PutHeader& header, const std::string&) {
      for (const common::v1::Record& record : header.records()) scored_.Push(record.lease());
      stream.Ack(header.seq());
    };
  }

  ~WorkerTest() override {
    if (worker_ != nullptr) worker_->Stop();
  }

  // The task of one member. Its answer is in the task, or has to be read from the queue.
  static queue::v1::Task TaskOf(uint32_t member, bool with_answer) {
    queue::v1::Task task;
    task.set_id(absl::StrCat("task ", member));
    task.mutable_owner()->set_group(std::string(16, 'g'));
    task.mutable_owner()->set_member(member);
    task.mutable_row()->set_json(R"({"answer": "42"})");
    task.mutable_lease()->set_id(absl::StrCat("lease ", member));
    task.set_finish(common::v1::FINISH_STOP);

    if (with_answer) {
      common::v1::Field& field = *task.add_fields();
      field.set_name("messages");
      field.set_inline_(kMessages);
    } else {
      *task.add_wants()->mutable_owner() = task.owner();
    }
    return task;
  }

  // The next call of LeaseTasks gets these tasks.
  void Lease(const std::vector<queue::v1::Task>& tasks) {
    queue::v1::LeaseTasksResponse response;
    response.mutable_tasks()->Add(tasks.begin(), tasks.end());
    served_.queue.task_leases.push_back(response);
  }

  void Start() {
    served_.Start();
    Scorer scorer = *Scorer::Make({{.name = "right", .verifier = "exact"}}, Combine::kSum);
    worker_ = std::make_unique<Worker>(
        Worker::Options{.job = "job", .job_name = "digits", .worker = "reward-0"},
        *rpc::Connect(served_.server->address(), {rpc::Role::kQueue}), std::move(scorer), Metrics(),
        [this](absl::Status why) { failed_.Push(why); });
  }

  // The server's threads fill these, so they are destroyed after it.
  Handed<std::vector<std::string>> released_;
  Handed<std::string> scored_;
  Handed<absl::Status> failed_;
  Served served_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerTest, TasksWhoseAnswersCannotBeReadNowAreGivenBackAndScoredLater) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    stream.End(Error(absl::StatusCode::kFailedPrecondition, "RESTORE_FIRST", "restore first"));
  };
  Lease({TaskOf(0, false), TaskOf(1, false)});
  Lease({TaskOf(0, true), TaskOf(1, true)});
  Start();

  EXPECT_THAT(released_.Pop(), ElementsAre("lease 0", "lease 1"));
  EXPECT_EQ(scored_.Pop(), "lease 0");
  EXPECT_EQ(scored_.Pop(), "lease 1");
}

TEST_F(WorkerTest, AnAnswerThatCanNeverBeReadEndsTheWorkAndKeepsNoLease) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    stream.End(Error(absl::StatusCode::kAborted, "FENCED", "another process has this id"));
  };
  Lease({TaskOf(0, false)});
  Start();

  EXPECT_EQ(ReasonOf(failed_.Pop()), "FENCED");
  EXPECT_THAT(released_.Pop(), ElementsAre("lease 0"));
}

}  // namespace
}  // namespace sluice::reward
