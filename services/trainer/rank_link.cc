#include "services/trainer/rank_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/collective/c10d_collective.h"
#include "common/collective/remote_rendezvous.h"
#include "common/rpc/channel.h"

namespace sluice::trainer {
RankLink::RankLink() = default;
RankLink::~RankLink() = default;

absl::Status RankLink::Join(const JobConfig& config, const std::string& worker) {
  const JobConfig::Ranks& ranks = config.ranks;
  if (ranks.world <= 1) return absl::OkStatus();
  if (ranks.host.empty())
    return NoCollectiveHostError(worker,
                                 absl::StrCat("the job has ", ranks.world, " trainer ranks"));
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(ranks.rendezvous, {rpc::Role::kTrainer}));
  // Rank 0 may hear of the group later than the others. Another rank may come late, and if it never
  // comes, the controller ends the wait.
  RemoteRendezvous rendezvous(std::move(channel), {.job = config.id,
                                                   .worker = worker,
                                                   .incarnation = config.incarnation,
                                                   .group = "",
                                                   .cancel = &cancel_});
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
  absl::StatusOr<std::unique_ptr<Collective>> joined = JoinC10d(options, rendezvous);
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
