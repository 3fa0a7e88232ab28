#include "services/trainer/rank_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/collective/collective.h"
#include "common/rpc/channel.h"
#include "common/rpc/client.h"
#include "sluice/collective/v1/collective.pb.h"

namespace sluice::trainer {
namespace {

// How often a rank asks for a value that is not there yet. Ranks start at about the same time.
constexpr absl::Duration kAskAgain = absl::Milliseconds(50);

class RemoteRendezvous : public Rendezvous {
 public:
  RemoteRendezvous(std::shared_ptr<rpc::Channel> channel, const JobConfig& config,
                   const std::string& worker, rpc::Cancel* cancel)
      : channel_(std::move(channel)), cancel_(cancel) {
    caller_.set_job(config.id);
    caller_.set_incarnation(config.incarnation);
    caller_.set_worker(worker);
  }

  absl::Status Set(const std::string& key, const std::string& value) override {
    collective::v1::SetRequest request;
    *request.mutable_call()->mutable_job() = caller_;
    request.set_key(key);
    request.set_value(value);
    collective::v1::SetResponse response;
    return rpc::Call(*channel_, request, &response, Options());
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    collective::v1::GetRequest request;
    *request.mutable_call()->mutable_job() = caller_;
    request.set_key(key);
    const absl::Duration end = Clock::Real()->Monotonic() + timeout;
    while (true) {
      collective::v1::GetResponse response;
      const absl::Status status = rpc::Call(*channel_, request, &response, Options());
      if (status.ok()) return response.value();
      if (ReasonOf(status) != "NOT_YET") return status;
      if (Clock::Real()->Monotonic() >= end) return status;
      if (cancel_->WaitFor(kAskAgain)) return absl::CancelledError("this rank leaves the group");
    }
  }

 private:
  // Rank 0 may hear of the group later than the others.
  rpc::CallOptions Options() const {
    return {.give_up = absl::InfiniteDuration(), .cancel = cancel_};
  }

  const std::shared_ptr<rpc::Channel> channel_;
  rpc::Cancel* const cancel_;
  common::v1::JobRef caller_;
};

}  // namespace

RankLink::RankLink() = default;
RankLink::~RankLink() = default;

absl::Status RankLink::Join(const JobConfig& config, const std::string& worker) {
  const JobConfig::Ranks& ranks = config.ranks;
  if (ranks.world <= 1) return absl::OkStatus();
  if (ranks.host.empty()) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.hint = "start each trainer with --collective-host ADDRESS, its address in a network that "
                 "only trainers reach: ranks exchange gradients over TCP without encryption, and "
                 "without certificates, because LibTorch's Gloo has no TLS"},
        absl::StrCat("the job has ", ranks.world, " trainer ranks, and ", worker,
                     " has no address at which other ranks may reach it"));
  }
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(ranks.rendezvous, {rpc::Role::kTrainer}));
  // Another rank may come late, and if it never comes, the controller ends the wait.
  RemoteRendezvous rendezvous(std::move(channel), config, worker, &cancel_);
  const Collective::Options options{.rank = ranks.rank,
                                    .world = ranks.world,
                                    .host = ranks.host,
                                    .ports = ranks.ports,
                                    .timeout = ranks.timeout};
  SLUICE_RETURN_IF_ERROR(Join(options, &rendezvous, &collective_));
  if (config.settings.shard != Shard::kNone) {
    PrefixedRendezvous second(&rendezvous, "snapshots/");
    SLUICE_RETURN_IF_ERROR(Join(options, &second, &snapshots_));
  }
  MutexLock lock(&mu_);
  joined_ = true;
  return absl::OkStatus();
}

bool RankLink::AbortUnlessJoined() {
  {
    MutexLock lock(&mu_);
    if (joined_) return false;
  }
  Abort();
  return true;
}

absl::Status RankLink::Join(const Collective::Options& options, Rendezvous* rendezvous,
                            std::shared_ptr<Collective>* group) {
  absl::StatusOr<std::unique_ptr<Collective>> joined = Collective::Join(options, rendezvous);
  if (cancel_.triggered()) return absl::CancelledError("this rank leaves the group");
  SLUICE_RETURN_IF_ERROR(joined.status());
  MutexLock lock(&mu_);
  *group = *std::move(joined);
  if (cancel_.triggered()) (*group)->Abort();
  return absl::OkStatus();
}

Collective* RankLink::collective() {
  MutexLock lock(&mu_);
  return collective_.get();
}

std::shared_ptr<Collective> RankLink::snapshots() {
  MutexLock lock(&mu_);
  return snapshots_;
}

void RankLink::Close() {
  std::shared_ptr<Collective> collective, snapshots;
  MutexLock lock(&mu_);
  collective = std::move(collective_);
  snapshots = std::move(snapshots_);
}

void RankLink::Abort() {
  cancel_.Trigger();
  MutexLock lock(&mu_);
  for (const auto& group : {collective_, snapshots_}) {
    if (group != nullptr) group->Abort();
  }
}

}  // namespace sluice::trainer
