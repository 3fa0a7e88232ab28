#include "services/rollout/admitter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/cancel.h"
#include "services/rollout/core/step_loop/step_loop.h"
#include "services/rollout/streamer.h"

namespace sluice::rollout {
namespace {

// Most members of one Admit, unless a single group has more. Without this limit one worker could
// take all groups of a step.
constexpr size_t kMostAtOnce = 64;
// Time between two tries while the job is not open at the queue.
constexpr absl::Duration kRetry = absl::Milliseconds(100);

}  // namespace

Admitter::Admitter(Options options, QueueClient* queue, LeaseKeeper* leases, Streamer* streamer,
                   StepLoop* loop, Grants* grants, daemon::Waits* waits, rpc::Cancel* drain,
                   std::function<void(absl::Status why)> failed)
    : options_(std::move(options)),
      queue_(queue),
      leases_(leases),
      streamer_(streamer),
      loop_(loop),
      grants_(grants),
      waits_(waits),
      drain_(drain),
      failed_(std::move(failed)) {}

Admitter::~Admitter() { Stop(); }

void Admitter::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Admitter::SetReady(bool ready) {
  MutexLock lock(&mu_);
  ready_ = ready;
  was_ready_ |= ready;
  changed_.NotifyAll();
}

void Admitter::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Admitter::Run() {
  if (!AwaitReady()) return;

  // The queue grants work only to a worker whose version it knows. Sync() tells it.
  absl::Status status = leases_->Sync();
  while (status.ok()) {
    if (!AwaitReady()) return;
    status = AdmitOnce();
    if (!absl::IsFailedPrecondition(status)) continue;

    // The queue has not opened the job yet, or has closed it. The controller's next assignments
    // will show which of the two it is, so ask again until they come.
    const auto waits =
        waits_->Begin({.kind = "DAEMON",
                       .id = "queue",
                       .at = "queue",
                       .cause = absl::StrCat(options_.worker, " gets no work: ", status.message()),
                       .next = absl::StrCat(options_.worker, " asks again")});
    if (drain_->WaitFor(kRetry)) return;
    status = leases_->Sync();
  }
  if (!drain_->triggered()) failed_(std::move(status));
}

// Waits for SetReady(). Returns false if Stop() came first.
bool Admitter::AwaitReady() {
  MutexLock lock(&mu_);
  if (ready_) return !stopping_;
  const auto waits = waits_->Begin(
      {.kind = "VERSION",
       .id = was_ready_ ? "whole" : "first",
       .at = "trainer",
       .cause =
           absl::StrCat(options_.worker, was_ready_ ? " asks for no work: its weights are damaged"
                                                    : " has no weights that the trainer published"),
       .next = absl::StrCat(options_.worker, " fetches and checks them as soon as they are out")});
  while (!ready_ && !stopping_) changed_.Wait(&mu_);
  return !stopping_;
}

// Waits for room, asks for members once, and passes on what is granted. CANCELLED: the session
// stops.
absl::Status Admitter::AdmitOnce() {
  const size_t group = options_.group_size;
  const size_t slots = std::max<size_t>(options_.slots, group);

  // AwaitRoom(n) waits until fewer than n members are being sampled. With this n, a whole group
  // fits from then on.
  const size_t room = streamer_->AwaitRoom(slots - group + 1);
  if (room == 0) return absl::CancelledError("stopping");

  // Ask for as many whole groups as fit.
  const size_t free_slots = room + group - 1;
  const size_t groups = std::max<size_t>(1, std::min(free_slots, kMostAtOnce) / group);
  queue::v1::AdmitRequest request;
  request.set_room(static_cast<uint32_t>(groups * group));
  SLUICE_ASSIGN_OR_RETURN(const queue::v1::AdmitResponse response,
                          queue_->Admit(std::move(request)));

  GrantedWork work;
  for (const queue::v1::Grant& grant : response.grants()) {
    for (const queue::v1::Member& member : grant.members()) leases_->Hold(member.lease().id());
    SLUICE_RETURN_IF_ERROR(grants_->ConvertGrant(grant, &work));
  }
  const auto resumed =
      std::count_if(work.members.begin(), work.members.end(),
                    [](const Member& member) { return !member.trajectory.tokens().empty(); });
  if (resumed > 0) {
    log::Info("answers_resumed",
              {{"job_id", options_.job_name}, {"answers", static_cast<int64_t>(resumed)}});
  }

  // The streamer must know a member before the engine samples its first token, so it comes first.
  if (!work.drops.empty()) streamer_->AddDrops(std::move(work.drops));
  if (!work.members.empty()) streamer_->AddMembers(std::move(work.members));
  if (!work.requests.empty()) loop_->Add(std::move(work.requests));
  return absl::OkStatus();
}

}  // namespace sluice::rollout
