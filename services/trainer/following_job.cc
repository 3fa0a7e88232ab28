#include "services/trainer/following_job.h"

#include <pthread.h>

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reused_memory.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/base/watchdog.h"
#include "common/checkpoint/model_dir.h"
#include "common/cores/core_share.h"
#include "common/log/log.h"
#include "services/trainer/core/trainer.h"
#include "services/trainer/job_context.h"
#include "services/trainer/job_memory.h"
#include "services/trainer/rank_link.h"
#include "services/trainer/teacher.h"

namespace sluice::trainer {
namespace {
// Its share of one batch does not take as long as this.
constexpr absl::Duration kLongestShare = absl::Hours(1);
}  // namespace

class FollowingJob::Impl {
 public:
  Impl(JobConfig config, std::string worker, CoreShare* cores,
       std::function<void(const JobStanding& standing)> on_standing)
      : job_{.config = std::move(config), .worker = std::move(worker)},
        cores_(cores),
        on_standing_(std::move(on_standing)) {}

  void Run();
  void Leave(bool checkpoint) {
    if (!checkpoint) leave_ = true;
    if (!checkpoint) link_.Abort();
    else if (link_.AbortUnlessJoined()) leave_ = true;
  }
  const JobConfig& config() const { return job_.config; }
  std::vector<common::v1::WaitEdge> Explain() const { return job_.waits.Edges(); }

  std::thread thread;

 private:
  absl::Status Follow();
  void End(const absl::Status& status);
  void ReportStanding(bool ready, absl::string_view phase, absl::string_view cause = "") const {
    on_standing_({.ready = ready, .phase = std::string(phase), .cause = std::string(cause)});
  }
  daemon::Wait Wait(absl::string_view cause) const {
    return {.kind = "CALL",
            .id = job_.config.ranks.rendezvous,
            .cause = absl::StrCat(job_.worker, ", rank ", job_.config.ranks.rank, ", ", cause)};
  }

  const ReusedMemory memory_;  // Of the thread.
  JobContext job_;
  CoreShare* const cores_;
  const std::function<void(const JobStanding& standing)> on_standing_;
  std::atomic<bool> leave_{false};
  Watchdog::Loop watched_{ProcessWatchdog(), "follow"};
  RankLink link_;
  bool joined_ = false;  // Later on rank 0 or the controller says why the group has ended.
};

void FollowingJob::Impl::Run() {
  memory_.UseOnThisThread();
  ReportStanding(false, "loading");
  End(Follow());
}

absl::Status FollowingJob::Impl::Follow() {
  const JobConfig& config = job_.config;
  SLUICE_ASSIGN_OR_RETURN(const ModelDir model, ReadModelDir(config.model_dir));
  SLUICE_ASSIGN_OR_RETURN(const std::optional<ModelDir> teacher, ReadTeacher(config, model));
  const ModelConfig* const teacher_config = teacher.has_value() ? &teacher->config : nullptr;
  SLUICE_ASSIGN_OR_RETURN(const Settings settings,
                          FitIntoMemory(config, model.config, teacher_config));
  {
    const auto waits = job_.waits.Begin(Wait("waits until all ranks have come"));
    SLUICE_RETURN_IF_ERROR(link_.Join(config, job_.worker));
    joined_ = true;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                          Trainer::Create(settings, model.config, job_.clock, link_.collective(),
                                          link_.snapshots(), teacher_config));
  trainer->SetCheckpointDir(config.checkpoint_dir);
  ReportStanding(true, "training");
  log::Info("rank_follows", {{"job_id", config.name}, {"rank", config.ranks.rank}});

  // Rank 0 waits for data without a limit, so this rank does too.
  std::optional<CoreShare::Busy> busy;
  std::optional<daemon::Waits::Scope> waits;
  const auto works = [&](bool now) {
    waits.reset();
    busy.reset();
    if (now) {
      watched_.Begin("does its share of a step", kLongestShare);
      busy.emplace(cores_);
    } else {
      watched_.Rest();
      waits.emplace(job_.waits.Begin(Wait("waits for what rank 0 does next")));
    }
  };
  return trainer->Follow(works);
}

void FollowingJob::Impl::End(const absl::Status& status) {
  watched_.Rest();
  log::Info("rank_ended",
            {{"job_id", job_.config.name}, {"rank", job_.config.ranks.rank}, {"why", status}});
  const std::string reason = ReasonOf(status);
  // What this rank knows is told before the others notice that it is gone.
  if (leave_ || (reason == "RANK_LOST" && joined_)) ReportStanding(false, "left");
  else if (reason == "RANKS_DIFFER" || reason == "RANK_LOST")
    ReportStanding(false, "restore", status.message());
  else ReportStanding(false, "failed", StatusText(status));
  link_.Close();
}

FollowingJob::FollowingJob(JobConfig config, std::string worker, CoreShare* cores,
                           std::function<void(const JobStanding& standing)> on_standing)
    : impl_(new Impl(std::move(config), std::move(worker), cores, std::move(on_standing))) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
  pthread_setname_np(impl_->thread.native_handle(), "sluice-follow");
}

FollowingJob::~FollowingJob() {
  Leave(false);
  Wait();
}

const JobConfig& FollowingJob::config() const { return impl_->config(); }
void FollowingJob::Leave(bool checkpoint) { impl_->Leave(checkpoint); }
void FollowingJob::Wait() {
  if (impl_->thread.joinable()) impl_->thread.join();
}
std::vector<common::v1::WaitEdge> FollowingJob::Explain() const { return impl_->Explain(); }

}  // namespace sluice::trainer
