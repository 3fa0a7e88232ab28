#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/contract.h"

namespace sluice::integration {

// A running queue with a job of two groups of two a step, at max_staleness 0, and hand-made clients
// in the parts of controller, rollout, reward and trainer. Each call that changes something is
// walked: tried with a lower incarnation, made, and repeated.
class QueueScene : public testing::Test {
 protected:
  static constexpr int64_t kIncarnation = 2;  // Of all workers, so that a lower one exists.

  void SetUp() override;

  const rpc::Channel& queue() const { return *cluster_.channel("queue-0"); }
  common::v1::Call CallOf(const std::string& worker, bool with_request = false) const;

  // All that the queue tells of its state, without ages.
  std::string State();

  // A unary call that changes something: a lower incarnation is fenced and changes nothing; the
  // call works; its repeat changes nothing and answers the same, a KEYED one with `repeat`.
  // `not_compared`: fields of the answer that tell what this call itself did.
  template <typename Response, typename Request>
  Response Walk(const Request& request, const std::set<std::string>& not_compared = {}) {
    walked_.insert(MethodName(request));
    ExpectFenced(request);
    Response first;
    EXPECT_EQ(rpc::Call(queue(), request, &first), absl::OkStatus()) << request.DebugString();
    const std::string state = State();
    Response second;
    EXPECT_EQ(rpc::Call(queue(), request, &second), absl::OkStatus()) << request.DebugString();
    EXPECT_EQ(State(), state) << MethodName(request) << " changed something when repeated";
    ExpectRepeat(first, second, not_compared);
    return first;
  }

  template <typename Request>
  void ExpectFenced(Request request) {
    // The controller's: fenced by revision, not by incarnation.
    if (request.call().job().incarnation() == 0) return;
    request.mutable_call()->mutable_job()->set_incarnation(kIncarnation - 1);
    if (!request.call().request().empty()) request.mutable_call()->set_request(RandomId16());
    const std::string before = State();
    const absl::Status status = CallOnce(queue(), request);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << MethodName(request) << ": " << status;
    EXPECT_EQ(ReasonOf(status), "FENCED") << MethodName(request) << ": " << status;
    EXPECT_EQ(State(), before) << MethodName(request)
                               << " of a lower incarnation changed something";
  }

  // A parked call for which there is nothing.
  template <typename Response, typename Request>
  void ExpectParks(Request request) {
    *request.mutable_wait() = rpc::ToProto(absl::Milliseconds(20));
    Response response;
    ASSERT_EQ(rpc::Call(queue(), request, &response), absl::OkStatus());
    EXPECT_TRUE(response.has_edge()) << response.DebugString();
    EXPECT_NE(response.edge().on().kind(), common::v1::NODE_KIND_UNSPECIFIED)
        << response.DebugString();
    EXPECT_FALSE(response.edge().cause().empty()) << response.DebugString();
  }

  // A Put of one message, on a stream of its own.
  absl::StatusOr<queue::v1::PutAck> PutOnce(const common::v1::Call& call,
                                            const common::v1::Record& record,
                                            const std::string& payload);
  void WalkPut(const common::v1::Call& call, const common::v1::Record& record,
               const std::string& payload);
  // The record comes back INVALID_ARGUMENT and leaves no trace.
  void ExpectRefused(const std::string& worker, const common::v1::Record& record,
                     const std::string& payload);
  void WalkGet(const common::v1::Call& call, const std::string& lease,
               const std::vector<common::v1::Want>& wants);
  void WalkWatch(const common::v1::Call& call);

  // A piece of `tokens`: of the prompt, or sampled by `version` with `logprob` each.
  static common::v1::Record PromptRecord(const queue::v1::Grant& grant,
                                         std::initializer_list<int32_t> tokens,
                                         std::string* payload);
  static common::v1::Record SampledRecord(const queue::v1::Grant& grant, int member, uint64_t at,
                                          std::initializer_list<int32_t> tokens,
                                          std::string* payload, float logprob = -0.5F,
                                          int64_t version = 0);

  // SetJob, Restore, and version 0 published and loaded.
  void SetUpJob();
  // Version `number` is published and loaded.
  void Publish(int64_t number);
  // All members that the step has room for; one more Admit parks.
  queue::v1::AdmitResponse Admit();
  // Prompt, answer of three tokens and seal of each member; `versions`: of the members' tokens, in
  // order; `began`: of the first member's first two, if it is another.
  void WriteAndSeal(const queue::v1::Grant& grant, const std::vector<int64_t>& versions = {0, 0},
                    std::optional<int64_t> began = std::nullopt);
  // Leases the ready tasks of two members, gives them back, leases them again and puts their
  // rewards.
  void Score();
  // Acquires batch k of two groups.
  queue::v1::Batch Acquire(int64_t k);
  // Applies it, and makes version k + 1 durable.
  void Train(const queue::v1::Batch& batch);

  Cluster cluster_{{.rollouts = 0, .rewards = 0, .trainers = 0}};
  const std::string job_ = std::string(32, 'a');
  const std::string rollout_ = "rollout-9", reward_ = "reward-9", trainer_ = "trainer-9";
  queue::v1::QueueSpec spec_;
  std::set<std::string> walked_;
};

}  // namespace sluice::integration
