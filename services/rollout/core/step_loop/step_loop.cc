#include "services/rollout/core/step_loop/step_loop.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"

namespace sluice {
namespace {

// A large model on few cores takes long, but not as long as this.
constexpr absl::Duration kLongestStep = absl::Minutes(5);
constexpr absl::Duration kLongestActivation = absl::Minutes(10);

}  // namespace

StepLoop::StepLoop(Engine* engine, KvPolicy kv, CoreShare* cores, Sink* sink)
    : engine_(engine), kv_(kv), cores_(cores), sink_(sink), stats_(engine->Stats()) {
  thread_ = std::thread([this] {
    busy_.emplace(cores_);
    Run();
    RefuseChecks({});
    busy_.reset();
  });
  pthread_setname_np(thread_.native_handle(), "sluice-decode");
}

StepLoop::~StepLoop() { Stop(); }

void StepLoop::Add(std::vector<Request> requests) {
  MutexLock lock(&mu_);
  for (Request& request : requests) inbox_.requests.push_back(std::move(request));
  changed_.NotifyAll();
}

void StepLoop::Abort(uint64_t request, AbortReason reason) {
  MutexLock lock(&mu_);
  inbox_.aborts.emplace_back(request, reason);
  changed_.NotifyAll();
}

void StepLoop::Activate(StagedWeights staged) {
  MutexLock lock(&mu_);
  inbox_.staged = std::move(staged);
  changed_.NotifyAll();
}

void StepLoop::CheckWeights(WeightsCheckDone done) {
  {
    MutexLock lock(&mu_);
    if (!ended_) {
      inbox_.checks.push_back(std::move(done));
      changed_.NotifyAll();
      return;
    }
  }
  done(absl::UnavailableError("the engine has ended"));
}

void StepLoop::RunChecks(std::vector<WeightsCheckDone> checks) {
  if (checks.empty()) return;
  watched_.Begin("reads all weights", kLongestActivation);
  std::optional<WeightDamage> damage;
  const WeightsCheck check = engine_->CheckWeights(&damage);
  watched_.Tick();
  UpdateStats();
  if (damage.has_value()) sink_->OnDamage(*damage);
  for (const WeightsCheckDone& done : checks) done(check);
}

void StepLoop::RefuseChecks(std::vector<WeightsCheckDone> checks) {
  {
    MutexLock lock(&mu_);
    ended_ = true;
    std::move(inbox_.checks.begin(), inbox_.checks.end(), std::back_inserter(checks));
    inbox_.checks.clear();
  }
  for (const WeightsCheckDone& done : checks) done(absl::UnavailableError("the engine has ended"));
}

void StepLoop::SetPaused(bool paused) {
  MutexLock lock(&mu_);
  paused_ = paused;
  changed_.NotifyAll();
}

bool StepLoop::Paused() const {
  MutexLock lock(&mu_);
  return paused_;
}

void StepLoop::Stop() {
  {
    MutexLock lock(&mu_);
    inbox_.stop = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

EngineStats StepLoop::stats() const {
  MutexLock lock(&mu_);
  return stats_;
}

StepLoop::Times StepLoop::times() const {
  MutexLock lock(&mu_);
  return times_;
}

StepLoop::Inbox StepLoop::TakeInbox(bool nothing_to_do) {
  MutexLock lock(&mu_);
  const auto empty = [&] {
    return inbox_.requests.empty() && inbox_.aborts.empty() && !inbox_.staged &&
           inbox_.checks.empty() && !inbox_.stop;
  };
  if ((nothing_to_do || paused_) && empty()) {
    const absl::Duration start = Clock::Real()->Monotonic();
    busy_.reset();
    watched_.Rest();
    while ((nothing_to_do || paused_) && empty()) changed_.Wait(&mu_);
    watched_.Tick();
    busy_.emplace(cores_);
    times_.idle += Clock::Real()->Monotonic() - start;
  }

  // `stop` stays set, so that it is seen however often the inbox is taken.
  const bool stop = inbox_.stop;
  Inbox taken = std::exchange(inbox_, Inbox());
  inbox_.stop = stop;
  return taken;
}

// Gives the inbox's requests and aborts to the engine. Returns the requests that it refused, as
// failures. Requests come first, so that an abort finds its request in the engine.
StepEvents StepLoop::ApplyRequests(Inbox* inbox) {
  StepEvents refused;
  for (Request& request : inbox->requests) {
    const uint64_t id = request.id;
    if (absl::Status status = engine_->AddRequest(std::move(request)); !status.ok()) {
      refused.failures.push_back({id, std::move(status)});
    }
  }
  for (const auto& [id, reason] : inbox->aborts) engine_->Abort(id, reason);
  // Perhaps no step follows.
  if (!inbox->aborts.empty()) UpdateStats();
  return refused;
}

// Activates new weights and tells the sink. An error means that the engine is broken.
absl::Status StepLoop::ActivateStaged(const StagedWeights& staged) {
  const absl::Duration start = Clock::Real()->Monotonic();
  watched_.Begin("activates new weights", kLongestActivation);
  SLUICE_ASSIGN_OR_RETURN(const Activation activation, engine_->ActivateWeights(staged, kv_));
  watched_.Tick();
  {
    MutexLock lock(&mu_);
    times_.activate += Clock::Real()->Monotonic() - start;
  }
  UpdateStats();
  sink_->OnActivation(staged, activation);
  return absl::OkStatus();
}

// Reads a part of the weights again. It takes a fraction of a pass over all, so a request that
// comes meanwhile does not wait long.
void StepLoop::VerifyPart() {
  watched_.Begin("reads its weights again", kLongestActivation);
  const std::optional<WeightDamage> damage = engine_->VerifyPart();
  watched_.Tick();
  UpdateStats();
  if (damage.has_value()) sink_->OnDamage(*damage);
}

void StepLoop::UpdateStats() {
  bool had_room = false, has_room = false;
  {
    MutexLock lock(&mu_);
    had_room = stats_.room_for_version;
    stats_ = engine_->Stats();
    has_room = stats_.room_for_version;
  }
  if (has_room && !had_room) sink_->OnRoom();
}

void StepLoop::Run() {
  while (true) {
    const bool stands = engine_->idle() || engine_->damaged();
    Inbox inbox = TakeInbox(stands && engine_->verified());
    if (inbox.stop) return RefuseChecks(std::move(inbox.checks));
    engine_->SetThreads(cores_->threads());

    RunChecks(std::move(inbox.checks));
    if (inbox.staged) {
      if (absl::Status status = ActivateStaged(*inbox.staged); !status.ok())
        return sink_->OnBroken(std::move(status));
    }
    if (StepEvents refused = ApplyRequests(&inbox); !refused.failures.empty())
      sink_->OnStep(std::move(refused));
    if (engine_->damaged()) continue;
    if (engine_->idle()) {
      if (!engine_->verified()) VerifyPart();
      continue;
    }
    if (Paused()) continue;

    SLUICE_FAILPOINT("rollout.step");
    watched_.Begin("takes a step", kLongestStep);
    const absl::Duration start = Clock::Real()->Monotonic();
    absl::StatusOr<StepEvents> events = engine_->Step();
    watched_.Tick();
    if (!events.ok()) return sink_->OnBroken(events.status());
    UpdateStats();
    {
      const absl::Duration took = Clock::Real()->Monotonic() - start;
      MutexLock lock(&mu_);
      // The time of a step with both prefill and decode is divided by the numbers of rows.
      const double prefill =
          events->rows == 0 ? 0 : static_cast<double>(events->prefill_rows) / events->rows;
      times_.prefill += took * prefill;
      times_.decode += took * (1 - prefill);
      events->seconds = absl::ToDoubleSeconds(took);
    }

    if (!events->tokens.empty() || !events->failures.empty() || !events->crowded_out.empty())
      sink_->OnStep(*std::move(events));
  }
}

}  // namespace sluice
