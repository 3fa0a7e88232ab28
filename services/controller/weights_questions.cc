#include "services/controller/weights_questions.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/controller/ask_all.h"
#include "services/controller/peers.h"

namespace sluice::controller {
namespace {

// The job's workers of a role; the first trainer is rank 0.
std::vector<std::string> WorkersOf(const Job& job, Role role) {
  std::vector<std::string> ids;
  for (const Worker& worker : job.assign.workers) {
    if (worker.role == role) ids.push_back(worker.id);
  }
  return ids;
}

absl::Status NobodyServes(const Job& job, absl::string_view who) {
  return Error(
      absl::StatusCode::kFailedPrecondition, "NOT_YET",
      absl::StrCat("job ", job.record.name, " has no ", who, " now; ask again once it is RUNNING"));
}

}  // namespace

void ListWeights(Peers& peers, const Controller& core, const Job& job,
                 const weights::v1::ListRequest& request,
                 std::function<void(absl::Status, weights::v1::ListResponse)> done) {
  std::vector<std::string> holders = WorkersOf(job, Role::kTrainer);
  if (holders.empty()) holders = WorkersOf(job, Role::kRollout);
  if (holders.empty()) return done(NobodyServes(job, "trainer and no rollout"), {});

  auto asked = std::make_shared<weights::v1::ListRequest>(request);
  auto answer = std::make_shared<weights::v1::ListResponse>();
  peers.FillCall(job.record.id, asked->mutable_call());
  peers.CallDaemon(core.AddressOf(holders.front()), asked, answer,
                   [answer, done = std::move(done)](absl::Status status) {
                     done(std::move(status), std::move(*answer));
                   });
}

void VerifyWeights(Peers& peers, const Controller& core, const Job& job,
                   const weights::v1::VerifyRequest& request,
                   std::function<void(std::vector<job::v1::RolloutVerified>)> done) {
  AskAll<job::v1::RolloutVerified>(peers, core, job, Role::kRollout, request, std::move(done));
}

void RollBackWeights(Peers& peers, const Controller& core, const Job& job,
                     const job::v1::ControlRequest& request,
                     std::function<void(absl::Status)> done) {
  const std::vector<std::string> trainers = WorkersOf(job, Role::kTrainer);
  if (trainers.empty() || !job.live()) return done(NobodyServes(job, "trainer"));
  if (request.incarnation() != job.assign.trainer_incarnation) {
    return done(ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NOT_YET",
         .catalogue = "SLUICE-CTL-0021",
         .hint = absl::StrCat("look at it again: `sluice weights list ", job.record.name, "`")},
        absl::StrCat("job ", job.record.name, " has incarnation ", job.assign.trainer_incarnation,
                     " of its trainers by now, not ", request.incarnation())));
  }

  auto rollback = std::make_shared<weights::v1::RollbackRequest>();
  peers.FillCall(job.record.id, rollback->mutable_call());
  rollback->set_version(request.step());
  peers.CallDaemon(core.AddressOf(trainers.front()), rollback,
                   std::make_shared<weights::v1::RollbackResponse>(), std::move(done));
}

void PinWeights(Peers& peers, const Controller& core, const Job& job,
                const job::v1::PinWeightsRequest& request, std::function<void(absl::Status)> done) {
  const std::vector<std::string> trainers = WorkersOf(job, Role::kTrainer);
  if (trainers.empty()) return done(NobodyServes(job, "trainer"));

  auto lease = std::make_shared<weights::v1::LeaseRequest>();
  peers.FillCall(job.record.id, lease->mutable_call());
  if (!request.manifest().empty()) lease->add_manifests(request.manifest());
  lease->set_pin(true);
  if (!request.on()) lease->mutable_ttl();
  peers.CallDaemon(core.AddressOf(trainers.front()), lease,
                   std::make_shared<weights::v1::LeaseResponse>(), std::move(done));
}

}  // namespace sluice::controller
