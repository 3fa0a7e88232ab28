#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/meta/store.h"
#include "services/controller/core/codec.h"
#include "services/controller/core/controller.h"

namespace sluice::controller {

// A controller's core with a real store, a clock that the test moves, and simulated daemons. At
// each Settle() every daemon sends a heartbeat, which reports the newest generation as applied, and
// the queue answers SetJob.
class World {
 public:
  struct Actor {
    Role role;
    std::string boot;
    int64_t incarnation = 0;
    uint64_t stream = 0;  // Of its heartbeats; 0: the daemon is dead.
    bool silent = false;  // It is alive, and sends no heartbeats.
    bool draining = false;
    std::map<std::string, Progress> progress;
    std::vector<std::pair<std::string, StepReport>> steps;  // Reported until they are stored.
    std::vector<std::pair<std::string, Event>> events;      // With the job, or "" for all.
    DesiredState desired;
    std::string pool{kDefaultPool};
  };
  struct QueueState {
    std::map<std::string, uint64_t> revisions;  // By job; a new process has none.
    std::set<std::string> restored;             // Jobs whose trainers have called Restore.
    Ledger ledger;
    bool answers = true;
  };

  World() {
    std::string name = (std::filesystem::temp_directory_path() / "sluice_ctl_XXXXXX").string();
    SLUICE_CHECK(mkdtemp(name.data()) != nullptr);
    dir_ = name;
    store_ = *meta::Open({.url = absl::StrCat("sqlite:", dir_, "/meta.db")});
    Restart();
  }

  ~World() { std::filesystem::remove_all(dir_); }

  Instant now() { return {clock.Now(), clock.Monotonic()}; }

  // Starts a new controller process. What was not stored is gone, and it knows no streams.
  void Restart() {
    absl::StatusOr<std::unique_ptr<Controller>> loaded = Controller::Load(store_.get(), now());
    SLUICE_CHECK_MSG(loaded.ok(), loaded.status().ToString());
    core = *std::move(loaded);
  }

  // Starts a process of daemon `id`. If there was one before, this is its successor.
  void Start(const std::string& id, Role role, const std::string& pool = kDefaultPool) {
    Actor& actor = actors[id];
    actor = Actor{role, absl::StrCat(id, "-boot-", ++boots_)};
    actor.pool = pool;
    SLUICE_CHECK(Reregister(id).ok());
    actor.stream = ++streams_;
    if (role == Role::kQueue)
      queues[id] = {.ledger = queues[id].ledger, .answers = queues[id].answers};
  }

  absl::StatusOr<RegisterOutput> Reregister(const std::string& id) {
    Actor& actor = actors[id];
    RegisterInput input;
    input.daemon.id = id;
    input.daemon.role = actor.role;
    input.daemon.boot = actor.boot;
    input.daemon.incarnation = actor.incarnation;
    input.daemon.protocol_min = input.daemon.protocol_max = kProtocol;
    input.daemon.addresses = {{"grpc", absl::StrCat(id, ":1")}};
    input.daemon.labels = {{"pool", actor.pool}};
    input.generation = actor.desired.generation;
    for (const DaemonAssignment& assignment : actor.desired.assignments) {
      if (assignment.phase != AssignmentPhase::kStop) input.running.push_back(assignment.job);
    }
    absl::StatusOr<RegisterOutput> output = core->Register(now(), input);
    if (output.ok()) actor.incarnation = output->incarnation;
    Commit();
    return output;
  }

  void Kill(const std::string& id) {
    const uint64_t stream = std::exchange(actors[id].stream, 0);
    core->StreamClosed(now(), id, stream);
    Commit();
  }

  // Starts queue-0, trainer-0, rollout-0.., reward-0.
  void StartFleet(int rollouts = 1) {
    Start("queue-0", Role::kQueue);
    Start("trainer-0", Role::kTrainer);
    for (int i = 0; i < rollouts; ++i) Start(absl::StrCat("rollout-", i), Role::kRollout);
    Start("reward-0", Role::kReward);
  }

  std::string Submit(const std::string& name, Needs needs = DefaultNeeds(),
                     const std::string& hash = "aa") {
    const auto output = core->Submit(
        now(), {absl::StrCat(std::string(31, '0'), ++ids_), name, hash, "spec", needs});
    SLUICE_CHECK_MSG(output.ok(), output.status().ToString());
    Settle();
    return output->job;
  }

  static Needs DefaultNeeds() {
    Needs needs;
    needs.trainers = {1, 1};
    needs.rollouts = {1, 4};
    needs.rewards = {1, 4};
    return needs;
  }

  // Lets daemons and queue react: stores what is due, hands it out, sends the heartbeats, and
  // answers the calls to the queue. After six rounds nothing changes any more in these tests.
  void Settle() {
    for (int round = 0; round < 6; ++round) {
      Commit();
      for (auto& [id, actor] : actors) {
        if (actor.stream == 0 || actor.silent) continue;
        const absl::Status status = Beat(id);
        EXPECT_TRUE(status.ok()) << status;
      }
      AnswerCalls();
    }
    Commit();
  }

  absl::Status Beat(const std::string& id) {
    Actor& actor = actors[id];
    HeartbeatInput input;
    input.daemon = id;
    input.incarnation = actor.incarnation;
    input.stream = actor.stream;
    input.generation = actor.desired.generation;
    input.draining = actor.draining;
    for (const auto& [job, progress] : actor.progress) input.progress.push_back(progress);
    input.steps = actor.steps;
    input.events = actor.events;
    const absl::Status status = core->Heartbeat(now(), input);
    Commit();
    if (!status.ok()) return status;
    DesiredState desired = core->DesiredStateOf(id);
    if (desired.generation == 0) {  // It is told of no assignments, and keeps those it has.
      desired.generation = actor.desired.generation;
      desired.assignments = std::move(actor.desired.assignments);
    }
    actor.desired = std::move(desired);

    std::erase_if(actor.steps, [&](const auto& step) {
      const auto stored = actor.desired.steps_stored.find(step.first);
      return stored != actor.desired.steps_stored.end() &&
             StepMark{step.second.version.incarnation, step.second.k} <= stored->second;
    });
    std::erase_if(actor.events, [&](const auto& event) {
      return event.second.seq <= actor.desired.events_stored;
    });
    return status;
  }

  void Commit() {
    Outbox out = core->Take(now());
    int64_t revision = 0;
    if (!out.ops.empty()) {
      const absl::StatusOr<int64_t> done = store_->Txn(out.compares, out.ops);
      SLUICE_CHECK_MSG(done.ok(), done.status().ToString());
      revision = *done;
    }
    core->OnCommitted(revision);

    for (const ReleaseCall& call : out.releases) releases.push_back(call);
    for (const SetJobCall& call : out.set_jobs) calls.push_back(call);
    for (const std::string& job : out.diagnose) {
      core->OnDiagnosis(now(), job, diagnosis);
      ++diagnoses;
    }
  }

  void AnswerCalls() {
    std::deque<SetJobCall> open;
    open.swap(calls);
    for (const SetJobCall& call : open) {
      QueueState& queue = queues[call.queue];
      history.push_back(call);
      if (!queue.answers || actors[call.queue].stream == 0) {
        core->OnSetJobAnswer(now(), call, absl::UnavailableError("no answer"));
        continue;
      }

      const bool knows = queue.revisions.count(call.job) > 0;
      repeats += knows && queue.revisions[call.job] == call.revision;
      queue.revisions[call.job] = call.revision;
      core->OnSetJobAnswer(now(), call,
                           SetJobAnswer{queue.restored.contains(call.job), queue.ledger});
      if (call.phase != QueuePhase::kFreed) continue;
      queue.revisions.erase(call.job);
      queue.restored.erase(call.job);
    }
    Commit();
  }

  // Lets `time` pass while the daemons send heartbeats.
  void Pass(absl::Duration time, absl::Duration step = absl::Milliseconds(500)) {
    for (absl::Duration passed; passed < time; passed += step) {
      clock.Advance(step);
      core->Tick(now());
      Settle();
    }
  }

  // Each worker of the job reports that it is ready, with the incarnation that it was assigned, and
  // the trainers restore the queue. The daemon `but` has taken up the job and is not ready.
  void AllReady(const std::string& job, const std::string& but = "") {
    Settle();
    for (auto& [id, actor] : actors) {
      for (const DaemonAssignment& assignment : actor.desired.assignments) {
        if (assignment.job != job || assignment.phase != AssignmentPhase::kRun) continue;
        Progress& progress = actor.progress[job];
        progress.job = job;
        progress.incarnation = assignment.incarnation;
        progress.ready = id != but;
        progress.phase = "running";
        if (actor.role != Role::kTrainer) continue;
        progress.version = {assignment.incarnation, progress.step};
        queues[core->jobs().at(job).assign.queue].restored.insert(job);
      }
    }
    Settle();
  }

  // Each worker that was told to stop leaves its job. A job that ends with a checkpoint needs two
  // calls: the other workers are told to stop after the trainer has left.
  void Leave() {
    Settle();
    for (auto& named : actors) {
      Actor& actor = named.second;
      for (const DaemonAssignment& assignment : actor.desired.assignments) {
        if (assignment.phase != AssignmentPhase::kRun) actor.progress.erase(assignment.job);
      }
      std::erase_if(actor.progress, [&](const auto& entry) {
        return std::none_of(actor.desired.assignments.begin(), actor.desired.assignments.end(),
                            [&](const DaemonAssignment& p) { return p.job == entry.first; });
      });
    }
    Settle();
  }

  // Submits a job and brings it to RUNNING.
  std::string Run(const std::string& name, Needs needs = DefaultNeeds()) {
    const std::string job = Submit(name, needs);
    AllReady(job);
    EXPECT_EQ(State(job), JobState::kRunning);
    return job;
  }

  // The trainer reports step k.
  void Step(const std::string& job, int64_t k, double reward = 0.5, double count = 8) {
    AddReport(job, k, {{"reward_mean", reward}, {"reward_count", count}, {"tokens", 10}});
    Settle();
  }

  // Adds step k to the next heartbeat of the trainer.
  void AddReport(const std::string& job, int64_t k, std::map<std::string, double> values) {
    Actor& trainer = actors["trainer-0"];
    StepReport step;
    step.k = k;
    step.version = {core->jobs().at(job).assign.trainer_incarnation, k + 1};
    step.at = clock.Now();
    step.values = std::move(values);
    step.values.insert(step_values.begin(), step_values.end());
    step.staleness = {{"0", 10}, {"1", k % 2}};
    trainer.steps.emplace_back(job, step);
  }

  // Daemon `id` reports the phase of its part of the job, and the cause.
  void Say(const std::string& id, const std::string& job, const std::string& phase,
           const std::string& cause = "") {
    Progress& progress = actors[id].progress[job];
    progress.phase = phase;
    progress.cause = cause;
    Settle();
  }

  // The trainer reports a summary of its evaluations.
  void Evaluated(const std::string& job, const EvalSummary& eval) {
    actors["trainer-0"].progress[job].eval = eval;
    Settle();
  }

  const Job& job(const std::string& id) { return core->jobs().at(id); }
  JobState State(const std::string& id) { return job(id).record.state; }
  Result ResultOfJob(const std::string& id) {
    const std::string key = JobKey(id, "result");
    return *Decode<Result>(key, store_->Get(key).value().value);
  }

  std::vector<Event> Events(const std::string& id) {
    std::vector<Event> events;
    const std::vector<meta::Entry> entries = store_->List(JobKey(id, "events/")).value();
    for (const meta::Entry& entry : entries)
      events.push_back(*Decode<Event>(entry.key, entry.value));
    return events;
  }

  meta::Store* store() { return store_.get(); }

  ManualClock clock;
  std::unique_ptr<Controller> core;
  std::string diagnosis = "batch 0 has 1 of 2 groups";  // The answer for every stalled job.
  int diagnoses = 0;                                    // How often it was asked for.
  std::map<std::string, Actor> actors;
  std::map<std::string, QueueState> queues;
  std::deque<SetJobCall> calls;     // Not answered yet.
  std::vector<SetJobCall> history;  // All that were made.
  std::vector<ReleaseCall> releases;
  std::map<std::string, double> step_values;  // Are added to those of each reported step.
  int repeats = 0;                            // SetJob calls that the queue knew already.

 private:
  std::string dir_;
  std::unique_ptr<meta::Store> store_;
  int boots_ = 0, ids_ = 0;
  uint64_t streams_ = 0;
};

}  // namespace sluice::controller
