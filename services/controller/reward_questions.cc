#include "services/controller/reward_questions.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/controller/ask_all.h"
#include "sluice/reward/v1/reward.pb.h"

namespace sluice::controller {

void RetaskJob(Peers& peers, const Controller& core, const Job& job,
               const job::v1::ControlRequest& request,
               std::function<void(absl::Status, uint32_t)> done) {
  auto asked = std::make_shared<queue::v1::RetaskRequest>();
  auto answer = std::make_shared<queue::v1::RetaskResponse>();
  peers.FillCall(job.record.id, asked->mutable_call());
  if (request.verb() == job::v1::VERB_RESCORE) {
    asked->set_mode(queue::v1::RETASK_MODE_RESCORE);
    asked->set_generation(request.generation());
  } else {
    asked->set_mode(queue::v1::RETASK_MODE_READMIT);
    *asked->mutable_groups() = request.groups();
  }
  peers.CallDaemon(core.AddressOf(job.assign.queue), asked, answer,
                   [answer, done = std::move(done)](const absl::Status& status) {
                     done(status, answer->count());
                   });
}

void DescribeRewards(Peers& peers, const Controller& core, const Job& job,
                     std::function<void(std::vector<job::v1::RewardDescribed>)> done) {
  AskAll<job::v1::RewardDescribed>(peers, core, job, Role::kReward, reward::v1::DescribeRequest(),
                                   std::move(done));
}

void ReloadRewards(Peers& peers, const Controller& core, const Job& job, const std::string& reward,
                   std::function<void(absl::Status, std::vector<job::v1::RewardReloaded>)> done) {
  reward::v1::ReloadRequest request;
  request.set_reward(reward);
  AskAll<job::v1::RewardReloaded>(
      peers, core, job, Role::kReward, request,
      [done = std::move(done),
       name = job.record.name](std::vector<job::v1::RewardReloaded> rewards) {
        if (!rewards.empty()) return done(absl::OkStatus(), std::move(rewards));
        done(Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                   absl::StrCat("job ", name,
                                " has no reward daemon now; ask again once it is RUNNING")),
             {});
      });
}

}  // namespace sluice::controller
