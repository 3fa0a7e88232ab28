#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/testing/fault_file_system.h"
#include "services/queue/runner.h"
#include "tests/services/queue/core/harness.h"

namespace sluice::queue {

// Small segments: a short test fills several of them.
inline wal::Log::Options SmallLog(wal::FileSystem* file_system) {
  return {.segment_bytes = 64 << 10,
          .low_bytes = 0,
          .reserve_bytes = 4 << 10,
          .retry = absl::Milliseconds(1),
          .file_system = file_system};
}

// One job with its log, on a file system that fails where the test says. A call waits for its
// answer, or until the log fails, which ends the job (fatal()).
class DurableJob {
 public:
  DurableJob(wal::FileSystem* file_system, Spec spec, uint64_t snapshot_bytes = 64 << 20)
      : file_system_(file_system), spec_(std::move(spec)), snapshot_bytes_(snapshot_bytes) {}
  ~DurableJob() { Close(); }

  // Does what a daemon does at its start: recovers the job, or creates it if there is none.
  absl::Status Open() {
    {
      MutexLock lock(&mu_);
      fatal_ = absl::OkStatus();
    }
    const auto rows = std::make_shared<Rows>(std::vector<uint64_t>{1000});
    SLUICE_ASSIGN_OR_RETURN(
        StoredJob stored, OpenJob(
                              SmallLog(file_system_), kDir, [&](const JobHeader&) { return rows; },
                              [](uint64_t bytes) {
                                return std::shared_ptr<char>(new char[bytes],
                                                             std::default_delete<char[]>());
                              }));

    const bool recovered = stored.job != nullptr;
    found = stored.found;
    replayed = stored.events;
    if (!recovered) {
      stored = StoredJob();
      SLUICE_ASSIGN_OR_RETURN(stored, CreateJob(SmallLog(file_system_), kDir,
                                                {.job = std::string(32, 'd'),
                                                 .name = "durable",
                                                 .queue_incarnation = incarnation,
                                                 .seed = 5,
                                                 .spec = spec_,
                                                 .sources = {{.rows = 1000}}},
                                                rows));
    }

    runner_ = std::make_unique<JobRunner>(JobRunner::Options{.name = "durable",
                                                             .clock = &clock,
                                                             .snapshot_bytes = snapshot_bytes_,
                                                             .fatal =
                                                                 [this](const absl::Status& why) {
                                                                   MutexLock lock(&mu_);
                                                                   fatal_ = why;
                                                                   changed_.NotifyAll();
                                                                 }},
                                          std::move(stored));
    if (recovered) runner_->Restart(++incarnation);
    return absl::OkStatus();
  }

  // Shuts down as the daemon does on SIGTERM.
  void Close() {
    if (runner_ != nullptr) runner_->Stop(absl::UnavailableError("shutting down"));
    runner_.reset();
  }

  bool fatal() {
    MutexLock lock(&mu_);
    return !fatal_.ok();
  }

  // Returns nullopt if the log failed before the answer came.
  std::optional<Reply> Ask(const Caller& caller, Input input) {
    struct Slot {
      std::optional<Reply> reply;
    };
    const auto slot = std::make_shared<Slot>();
    runner_->Run(caller, std::move(input), [this, slot](Reply reply) {
      MutexLock lock(&mu_);
      slot->reply = std::move(reply);
      changed_.NotifyAll();
    });
    MutexLock lock(&mu_);
    while (!slot->reply && fatal_.ok()) changed_.Wait(&mu_);
    return slot->reply;
  }

  template <typename T>
  absl::StatusOr<T> Call(const Caller& caller, Input input) {
    std::optional<Reply> reply = Ask(caller, std::move(input));
    if (!reply) return absl::AbortedError("no answer: the log has ended");
    if (const auto* status = std::get_if<absl::Status>(&*reply)) return *status;
    return std::get<T>(*std::move(reply));
  }

  JobRunner& runner() { return *runner_; }
  template <typename F>
  auto ReadJob(F f) {
    return runner_->ReadJob([&](const Job& job, Instant) { return f(job); });
  }

  const Spec& spec() const { return spec_; }

  static constexpr char kDir[] = "/data/jobs/d";
  ManualClock clock;
  uint32_t incarnation = 1;
  wal::Found found;
  uint64_t replayed = 0;

 private:
  wal::FileSystem* const file_system_;
  const Spec spec_;
  const uint64_t snapshot_bytes_;
  Mutex mu_;
  CondVar changed_;
  absl::Status fatal_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<JobRunner> runner_;
};

// The calls that the workers of a job make in its first two steps, one after the other, each in the
// form in which a worker would repeat it. A second run repeats the calls that were answered before,
// which changes nothing, and makes those that were not.
class Script {
 public:
  // `durable`: at the end the trainer reports that step 0 is durable.
  explicit Script(DurableJob* job, bool durable = true) : job_(job), durable_(durable) {}

  struct Result {
    bool finished = false;
    // For each call that changes the job: true if the queue had done it before.
    std::map<std::string, bool> answered;
    std::string failure;  // The call that failed although the log works, and how.
  };

  // Makes the calls until the last one, or until the log fails.
  Result Run() {
    result_ = Result();
    Steps();
    result_.finished = !stopped_;
    stopped_ = false;
    return result_;
  }

 private:
  static constexpr int64_t kSteps = 2;
  const Caller controller_{"controller", 0}, trainer_{"t1", 1}, rollout_{"r1", 1}, reward_{"w1", 1};

  template <typename T>
  std::optional<T> Do(const std::string& what, const Caller& caller, Input input) {
    if (stopped_) return std::nullopt;
    absl::StatusOr<T> answer = job_->Call<T>(caller, std::move(input));
    if (!answer.ok()) {
      stopped_ = true;
      if (!job_->fatal()) result_.failure = absl::StrCat(what, ": ", answer.status().ToString());
      return std::nullopt;
    }
    if constexpr (requires { answer->repeat; }) result_.answered[what] = answer->repeat;
    return *std::move(answer);
  }

  void PutOne(const std::string& what, const Caller& caller, Record record) {
    const auto answer = Do<PutAnswer>(what, caller, Put{{std::move(record)}});
    if (!answer) return;
    // Work that is sealed and trained is gone from the queue: a repeat learns that it was taken.
    const bool gone = !answer->failed.empty() && ReasonOf(answer->failed[0].status) == "GONE";
    result_.answered[what] = answer->repeats > 0 || gone;
    if (answer->failed.empty() || gone) return;
    stopped_ = true;
    result_.failure = absl::StrCat(what, ": ", answer->failed[0].status.ToString());
  }

  static Id16 Request(uint8_t n) {
    Id16 id;
    id.bytes[0] = 7, id.bytes[1] = n;
    return id;
  }

  void Steps() {
    SetJob set{.revision = 1,
               .spec = job_->spec(),
               .workers = {{"t1", WorkerRole::kTrainer, 1},
                           {"w1", WorkerRole::kReward, 1},
                           {"r1", WorkerRole::kRollout, 1}}};
    Do<SetJobAnswer>("SetJob", controller_, set);
    Do<RestoreAnswer>("Restore", trainer_, Restore{});
    for (int64_t k = 0; k < kSteps && !stopped_; ++k) Step(k);
  }

  void Step(int64_t k) {
    const uint8_t n = static_cast<uint8_t>(k);

    // A trainer that comes back first asks which version is published.
    const std::vector<Loaded> out =
        job_->ReadJob([](const Job& job) { return job.watch().published; });
    if (out.empty() || out[0].version.number <= k) {
      Do<AdvanceVersionAnswer>(
          absl::StrCat("AdvanceVersion ", k), trainer_,
          AdvanceVersion{
              .expected = k == 0 ? std::nullopt : std::make_optional(PolicyVersion{1, k - 1}),
              .next = {1, k}});
    }

    Do<RenewAnswer>("Renew", rollout_, Renew{.loaded = {{0, {1, k}, true}}});
    const auto admitted = Do<AdmitAnswer>(absl::StrCat("Admit ", k), rollout_,
                                          Admit{.request = Request(n), .room = 4});
    if (!admitted) return;

    for (const queue::Grant& grant : admitted->grants) {
      PutOne(absl::StrCat("prompt ", grant.group.ordinal), rollout_,
             PieceRecord({.group = grant.group}, grant.members[0].lease.id, SegmentRole::kPrompt, 0,
                         4));
      for (const Member& member : grant.members) {
        const TrajectoryRef ref{grant.group, member.member, member.attempt};

        std::vector<Record> pieces;
        for (uint64_t at : {4, 24})
          pieces.push_back(
              PieceRecord(ref, member.lease.id, SegmentRole::kSampled, at, 20, {{{1, k}, 20, 0}}));

        uint32_t tokens = 0, logprobs = 0;
        uint64_t bytes = 0;
        for (Record& piece : pieces) {
          tokens = Crc32cConcat(tokens, piece.fields[0].bytes.crc32c, piece.fields[0].bytes.size);
          logprobs =
              Crc32cConcat(logprobs, piece.fields[1].bytes.crc32c, piece.fields[1].bytes.size);
          bytes += piece.fields[1].bytes.size;
          PutOne(absl::StrCat("piece ", ref.group.ordinal, "/", member.member, " at ",
                              piece.piece->at),
                 rollout_, piece);
        }

        const std::string name = absl::StrCat(ref.group.ordinal, "/", member.member);
        PutOne("messages " + name, rollout_,
               {.owner = ref,
                .lease = member.lease.id,
                .fields = {TextField("messages", std::string(100, 'm'))}});
        const auto sealed = Do<ItemsAnswer>("Seal " + name, rollout_,
                                            Seal{{{.ref = ref,
                                                   .lease = member.lease.id,
                                                   .tokens = 44,  // Prompt of 4, two pieces of 20.
                                                   .crc32c = Crc32cConcat(tokens, logprobs, bytes),
                                                   .finish = Finish::kStop}}});

        if (!sealed) return;
        const absl::Status& status = sealed->items[0].status;
        if (ReasonOf(status) == "GONE") result_.answered["Seal " + name] = true;
        if (status.ok() || ReasonOf(status) == "GONE") continue;
        stopped_ = true;
        result_.failure = absl::StrCat("Seal: ", status.ToString());
        return;
      }
    }

    const auto leased =
        Do<LeaseTasksAnswer>(absl::StrCat("LeaseTasks ", k), reward_,
                             LeaseTasks{.request = Request(100 + n), .rooms = {{"cpu", 4}}});
    if (!leased) return;
    for (const TaskGrant& task : leased->tasks) {
      Record record{.owner = task.owner, .task = task.id, .lease = task.lease.id, .last = true};
      record.fields = {
          TextField("reward_status", "ok"),
          MakeField<double>("task_reward", Dtype::kF64, {static_cast<double>(*task.owner.member)}),
          // More than 64 bytes, which a restart at the level `metadata` loses.
          MakeField<double>("rew_tok", Dtype::kF64, {4, 0.25, 5, -1, 24, 0.5, 30, 2, 43, 0.125})};
      PutOne(absl::StrCat("reward ", task.owner.group.ordinal, "/", *task.owner.member), reward_,
             record);
    }

    // A repeated run may find this batch applied.
    const bool over = job_->ReadJob([](const Job& job) { return job.version(); }) > k;
    if (!over) {
      const auto batch =
          Do<AcquireBatchAnswer>(absl::StrCat("AcquireBatch ", k), trainer_, AcquireBatch{.k = k});
      if (!batch) return;
      Do<ApplyAnswer>(absl::StrCat("Apply ", k), trainer_,
                      queue::Apply{.k = k, .lease = batch->lease.id, .crc32c = batch->crc32c});
    }
    if (k == 0 || !durable_) return;
    Do<DurableAnswer>(absl::StrCat("Durable ", k), trainer_,
                      Durable{.version = 1, .checkpoint = "c", .hash = FirstHash()});
  }

  std::string FirstHash() {
    return job_->ReadJob(
        [](const Job& job) { return job.batches().contains(0) ? job.batches().at(0).hash : ""; });
  }

  DurableJob* const job_;
  const bool durable_;
  Result result_;
  bool stopped_ = false;
};

}  // namespace sluice::queue
