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

// A running queue with a job of two groups of two members per step, at max_staleness 0. The test
// plays controller, rollout, reward and trainer. Each call that changes something is made three
// times: with a lower incarnation, which must be refused, then rightly, then as a repeat.
class QueueScene : public testing::Test {
 protected:
  static constexpr int64_t kIncarnation = 2;  // Of all workers, so that a lower one exists.

  void SetUp() override;

  const rpc::Channel& queue() const { return *cluster_.channel("queue-0"); }
  common::v1::Call CallOf(const std::string& worker, bool with_request = false) const;

  // Everything that the queue tells of its state, without ages.
  std::string State();

  // Makes a unary call that changes something. A lower incarnation is fenced and changes nothing;
  // the call succeeds; its repeat changes nothing and gets the same answer, marked in the field
  // `repeat` if there is one. `not_compared`: fields of the answer that tell what this call did.
  template <typename Response, typename Request>
  Response CallChecked(const Request& request, const std::set<std::string>& not_compared = {}) {
    called_.insert(MethodName(request));
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
    // The controller is fenced by the revision, not by an incarnation.
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

  // Makes a call for which there is nothing: it parks, and its answer says what it waited for.
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

  // Puts one record, on a stream of its own.
  absl::StatusOr<queue::v1::PutAck> PutOnce(const common::v1::Call& call,
                                            const common::v1::Record& record,
                                            const std::string& payload);
  void PutChecked(const common::v1::Call& call, const common::v1::Record& record,
                  const std::string& payload);
  // The record is refused as INVALID_ARGUMENT and changes nothing.
  void ExpectRefused(const std::string& worker, const common::v1::Record& record,
                     const std::string& payload);
  void GetChecked(const common::v1::Call& call, const std::string& lease,
                  const std::vector<common::v1::Want>& wants);
  void WatchChecked(const common::v1::Call& call);

  // A piece of `tokens`, of the prompt or sampled by `version` with `logprob` each. `payload` gets
  // its bytes.
  static common::v1::Record PromptRecord(const queue::v1::Grant& grant,
                                         std::initializer_list<int32_t> tokens,
                                         std::string* payload);
  static common::v1::Record SampledRecord(const queue::v1::Grant& grant, int member, uint64_t at,
                                          std::initializer_list<int32_t> tokens,
                                          std::string* payload, float logprob = -0.5F,
                                          int64_t version = 0);

  // Calls SetJob and Restore, publishes version 0 and loads it.
  void SetUpJob();
  // Publishes version `number` and loads it.
  void Publish(int64_t number);
  // Admits all members that the step has room for. One more Admit parks.
  queue::v1::AdmitResponse Admit();
  // Writes the prompt and an answer of three tokens for each member, and seals them. versions[m] is
  // the version that sampled the tokens of member m. If `began` is set, it is the version that
  // sampled the first two tokens of member 0.
  void WriteAndSeal(const queue::v1::Grant& grant, const std::vector<int64_t>& versions = {0, 0},
                    std::optional<int64_t> began = std::nullopt);
  // Leases the ready tasks of two members, gives them back, leases them again and puts their
  // rewards.
  void Score();
  // Acquires batch k of two groups.
  queue::v1::Batch Acquire(int64_t k);
  // Applies the batch and reports version k + 1 as durable.
  void Train(const queue::v1::Batch& batch);

  Cluster cluster_{{.rollouts = 0, .rewards = 0, .trainers = 0}};
  const std::string job_ = std::string(32, 'a');
  const std::string rollout_ = "rollout-9", reward_ = "reward-9", trainer_ = "trainer-9";
  queue::v1::QueueSpec spec_;
  std::set<std::string> called_;
};

}  // namespace sluice::integration
