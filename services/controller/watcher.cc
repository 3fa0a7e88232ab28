#include "services/controller/watcher.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/status.h"
#include "common/rpc/text.h"
#include "services/controller/core/codec.h"
#include "services/controller/translate.h"

namespace sluice::controller {
namespace {
constexpr int kPage = 100;  // Most events, and most steps, that are read at once.
constexpr absl::Duration kKeepaliveInterval = absl::Seconds(10);
}  // namespace

void JobService::Watcher::Begin(Controller& core) {
  const absl::StatusOr<const Job*> job = core.Find(wanted_);
  if (!job.ok()) return End(job.status());
  if (const absl::Status status = CheckOwner(person_, **job, wanted_); !status.ok())
    return End(status);
  job_ = (*job)->record.id;
  {
    MutexLock lock(&mu_);
    service_->Describe(**job, page_.emplace_back().mutable_status());
    changes_ = (*job)->changes;
    rewrites_ = (*job)->rewritten_from.size();
  }
  SendNext(core);
}

void JobService::Watcher::SendNext(Controller& core) {
  const auto job = core.jobs().find(job_);
  if (job == core.jobs().end())
    return End(Error(absl::StatusCode::kNotFound, "JOB", "the job was deleted"));
  bool over = false;
  {
    MutexLock lock(&mu_);
    if (ended_ || writing_) return;
    if (page_.empty() && !FillPage(job->second)) over = !follow_;
    else WriteFirst();
  }
  if (over) End(absl::OkStatus());
}

void JobService::Watcher::WriteFirst() {
  open_ = std::move(page_.front());
  rpc::MakeTextValid(&open_);
  page_.pop_front();
  writing_ = true;
  quiet_since_ = absl::InfiniteDuration();
  StartWrite(&open_);
}

bool JobService::Watcher::FillPage(const Job& job) {
  const auto events =
      service_->store_->List(JobKey(job_, "events/"), EventKey(job_, event_), kPage);
  if (events.ok()) {
    for (const meta::Entry& entry : *events) {
      const auto event = Decode<Event>(entry.key, entry.value);
      if (!event.ok()) continue;
      event_ = event->seq;
      ToProto(*event, page_.emplace_back().mutable_event());
    }
  }

  for (; rewrites_ < job.rewritten_from.size(); ++rewrites_)
    step_ = std::min(step_, job.rewritten_from[rewrites_] - 1);
  const auto steps =
      service_->store_->List(JobKey(job_, "steps/"), step_ < 0 ? "" : StepKey(job_, step_), kPage);
  if (steps.ok()) {
    for (const meta::Entry& entry : *steps) {
      const auto step = Decode<StepReport>(entry.key, entry.value);
      if (!step.ok()) continue;
      step_ = step->k;
      ToProto(*step, job_, page_.emplace_back().mutable_step());
    }
  }

  // The status is sent after the events that explain it.
  if (page_.empty() && job.changes != changes_) {
    changes_ = job.changes;
    job::v1::JobStatus* status = page_.emplace_back().mutable_status();
    if (IsFinal(job.record.state)) {
      service_->Describe(job, status);
    } else {
      ToProto(job, status);
    }
  }
  return !page_.empty();
}

void JobService::Watcher::SendKeepalive(absl::Duration now) {
  MutexLock lock(&mu_);
  if (ended_ || writing_) return;
  if (quiet_since_ == absl::InfiniteDuration()) quiet_since_ = now;
  if (now - quiet_since_ < kKeepaliveInterval) return;

  open_.Clear();
  writing_ = true;
  quiet_since_ = absl::InfiniteDuration();
  StartWrite(&open_);
}

void JobService::Watcher::OnWriteDone(bool ok) {
  if (!ok) return End(absl::CancelledError("the client left"));
  {
    MutexLock lock(&mu_);
    writing_ = false;
    // Only a new page needs the loop's thread, for which others wait too.
    if (!ended_ && !page_.empty()) return WriteFirst();
  }
  service_->loop_->Post([](Controller&, Instant) {},
                        [self = shared_from_this()](Controller& core) { self->SendNext(core); });
}

void JobService::Watcher::End(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = true;
  }
  Finish(rpc::ToGrpcStatus(status));
}

void JobService::Watcher::OnDone() {
  const auto self = shared_from_this();
  MutexLock lock(&service_->mu_);
  service_->watchers_.erase(this);
}

}  // namespace sluice::controller
