#include "services/queue/jobs.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/base/watchdog.h"
#include "common/log/job_lines.h"
#include "common/log/log.h"
#include "services/queue/memory.h"

namespace sluice::queue {
namespace {
constexpr absl::Duration kRebalance = absl::Seconds(1);  // How often memory is divided anew.
constexpr absl::Duration kTrim = absl::Seconds(10);      // How often empty segments are returned.

absl::Status NotListed(const std::string& job) {
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "NOT_LISTED", .retry_after = absl::Milliseconds(100)},
                   absl::StrCat("this queue has not been told of job ", job, " yet"));
}
}  // namespace

JobTable::JobTable(Options options)
    : options_(std::move(options)),
      memory_bytes_(options_.memory_bytes > 0 ? options_.memory_bytes : DefaultMemory()),
      folders_(options_.data_dir, options_.log, options_.clock, options_.recovered),
      incarnation_(options_.incarnation),
      load_thread_([this] { LoadLoop(); }),
      timer_thread_([this] { TimerLoop(); }) {}

JobTable::~JobTable() { Stop(); }

void JobTable::SetIncarnation(int64_t incarnation) {
  std::map<std::string, Recovered> recovered;
  {
    MutexLock lock(&mu_);
    recovered.swap(recovered_);
  }
  for (auto& [job, waiting] : recovered) {
    StoredJob& stored = waiting.stored;
    // The incarnation is higher than before, even if a controller that lost its store gives a lower
    // one, because watchers recognise a restart of the queue by it.
    const uint32_t now =
        std::max(static_cast<uint32_t>(incarnation), stored.job->queue_incarnation() + 1);
    JobRunner::Options options = RunnerOptions(job, stored.header.name, now);
    options.arena = waiting.arena;
    const auto runner = std::make_shared<JobRunner>(std::move(options), std::move(stored));
    runner->Restart(now);
    AddJob(job, runner);
  }
  MutexLock lock(&mu_);
  // It is set only now, so that a SetJob cannot make a second job in place of a recovered one.
  incarnation_ = incarnation;
}

void JobTable::AddJob(const std::string& job, const std::shared_ptr<JobRunner>& runner) {
  {
    MutexLock lock(&mu_);
    jobs_.emplace(job, runner);
    wake_ = absl::ZeroDuration();  // Makes the timer ask the job for its next tick.
    timer_.NotifyOne();
  }
  if (options_.added) options_.added(runner);
}

absl::StatusOr<std::shared_ptr<JobRunner>> JobTable::Find(const std::string& job) {
  MutexLock lock(&mu_);
  if (const auto it = jobs_.find(job); it != jobs_.end()) return it->second;
  if (const auto it = refused_.find(job); it != refused_.end()) return it->second;
  return NotListed(job);
}

std::vector<std::shared_ptr<JobRunner>> JobTable::All() {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<JobRunner>> all;
  for (const auto& [id, runner] : jobs_) all.push_back(runner);
  return all;
}

void JobTable::SetJob(const std::string& job, const std::string& name, const Caller& caller,
                      queue::SetJob input, JobRunner::Done done) {
  std::shared_ptr<JobRunner> runner;
  {
    MutexLock lock(&mu_);
    if (const auto it = jobs_.find(job); it != jobs_.end()) {
      runner = it->second;
    } else if (!stopped_) {
      loads_.push_back(
          [this, job, name, caller, input = std::move(input), done = std::move(done)]() mutable {
            LoadJob(job, name, caller, std::move(input), std::move(done));
          });
      load_.NotifyOne();
      return;
    }
  }
  if (runner == nullptr) return done(absl::UnavailableError("the queue is shutting down"));
  ForwardSetJob(runner, job, caller, std::move(input), std::move(done));
}

// Runs on the load thread. An earlier SetJob in the list may have made the job already.
void JobTable::LoadJob(const std::string& job, const std::string& name, const Caller& caller,
                       queue::SetJob input, JobRunner::Done done) {
  int64_t incarnation = 0;
  {
    MutexLock lock(&mu_);
    incarnation = incarnation_;
  }

  // The table is searched after the incarnation was read: once that is set, all recovered jobs are
  // in the table. In the other order a recovered job might be missed and made a second time.
  const auto found = Find(job);
  if (found.ok()) return ForwardSetJob(*found, job, caller, std::move(input), std::move(done));
  if (incarnation == 0) {
    return done(ErrorWith(absl::StatusCode::kUnavailable,
                          {.reason = "NOT_REGISTERED", .retry_after = absl::Milliseconds(50)},
                          "the queue has not been told its incarnation yet"));
  }
  if (input.phase == Phase::kFreed) {  // It was freed before, or could not be brought back.
    if (absl::Status removed = folders_.Remove(job); !removed.ok()) return done(std::move(removed));
    {
      MutexLock lock(&mu_);
      refused_.erase(job);
    }
    return done(SetJobAnswer{.repeat = true});
  }

  if (!absl::IsUnavailable(found.status())) return done(found.status());
  const log::JobScope lines(job, name.empty() ? job : name);  // There is no runner yet.
  absl::StatusOr<std::shared_ptr<JobRunner>> runner =
      MakeRunner(job, name, input.spec, incarnation);
  if (!runner.ok()) return done(runner.status());
  AddJob(job, *runner);
  Rebalance();
  log::Info("job_set", {{"job_id", (*runner)->name()}, {"job", job}});
  ForwardSetJob(*runner, job, caller, std::move(input), std::move(done));
}

JobRunner::Options JobTable::RunnerOptions(const std::string& job, const std::string& name,
                                           int64_t incarnation) {
  JobRunner::Options options{.name = name.empty() ? job : name,
                             .clock = options_.clock,
                             .snapshot_bytes = options_.snapshot_bytes};
  options.wake = [this](absl::Duration when) {
    MutexLock lock(&mu_);
    if (when >= wake_) return;
    wake_ = when;
    timer_.NotifyOne();
  };
  if (options_.ledger_changed) {
    options.ledger_changed = [this, job, incarnation](std::shared_ptr<const LedgerEntry> entry) {
      options_.ledger_changed(job, incarnation, std::move(entry));
    };
  }
  if (options_.alarm) {
    options.alarm = [this, job](const Alarm& alarm) { options_.alarm(job, alarm); };
  }
  options.synced = options_.synced;
  options.fatal = [this, job](const absl::Status& why) {
    if (options_.fatal) return options_.fatal(why);
    log::Error("log_failed", {{"job", job}, {"message", why.message()}});
    // Exit at once, because nothing may be answered or written that was not synced.
    std::_Exit(1);
  };
  return options;
}

absl::StatusOr<std::shared_ptr<JobRunner>> JobTable::MakeRunner(const std::string& job,
                                                                const std::string& name,
                                                                const Spec& spec,
                                                                int64_t incarnation) {
  SLUICE_RETURN_IF_ERROR(Job::CheckSpec(spec));
  SLUICE_RETURN_IF_ERROR(CheckMemory(spec));
  if (spec.durability != Durability::kMemory && !folders_.stored()) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NO_DATA_DIR",
         .catalogue = "SLUICE-QUEUE-0007",
         .hint = "start sluice-queue with --data-dir DIR, or set queue.keep.durability to memory"},
        absl::StrCat(
            "queue.keep.durability: ", spec.durability == Durability::kFull ? "full" : "metadata",
            " needs a queue with a data directory"));
  }
  JobRunner::Options options = RunnerOptions(job, name, incarnation);
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const RowSource> rows,
                          ReadRowSources(name, spec, options.alarm));

  JobHeader header{.job = job,
                   .name = name,
                   .queue_incarnation = static_cast<uint32_t>(incarnation),
                   .spec = spec};
  std::memcpy(&header.seed, RandomId16().data(), sizeof(header.seed));

  if (spec.durability == Durability::kMemory) {
    options.job = header.options();
    return std::make_shared<JobRunner>(std::move(options), spec, std::move(rows));
  }
  for (uint32_t s = 0; s < spec.sources.size(); ++s) header.sources.push_back(DigestOf(*rows, s));
  SLUICE_ASSIGN_OR_RETURN(StoredJob stored, folders_.Create(std::move(header), std::move(rows)));
  return std::make_shared<JobRunner>(std::move(options), std::move(stored));
}

void JobTable::ForwardSetJob(const std::shared_ptr<JobRunner>& runner, const std::string& job,
                             const Caller& caller, queue::SetJob input, JobRunner::Done done) {
  const bool freed = input.phase == Phase::kFreed;
  runner->Run(caller, std::move(input),
              [this, freed, job, done = std::move(done)](Reply reply) mutable {
                if (!freed || !std::holds_alternative<SetJobAnswer>(reply))
                  return done(std::move(reply));
                // The load thread removes the job: this may be the thread of the job's log, which
                // cannot wait for its own end.
                {
                  MutexLock lock(&mu_);
                  if (!stopped_) {
                    loads_.push_back(
                        [this, job, done = std::move(done), reply = std::move(reply)]() mutable {
                          RemoveJob(job);
                          done(std::move(reply));
                        });
                    load_.NotifyOne();
                    return;
                  }
                }
                done(std::move(reply));  // The next start of the queue removes the job.
              });
}

// Runs on the load thread.
void JobTable::RemoveJob(const std::string& job) {
  std::shared_ptr<JobRunner> runner;
  {
    MutexLock lock(&mu_);
    const auto it = jobs_.find(job);
    if (it == jobs_.end()) return;
    runner = std::move(it->second);
    jobs_.erase(it);
    shares_.erase(job);
  }
  if (options_.removed) options_.removed(runner);
  runner->Stop(NotListed(job));
  if (absl::Status removed = folders_.Remove(job); !removed.ok())
    log::Warning("job_not_removed", {{"job", job}, {"message", removed.message()}});
  log::Info("job_freed", {{"job_id", runner->name()}, {"job", job}});
}

// Memory. -----------------------------------------------------------------------------------------

namespace {
MemoryClaim ClaimOf(JobRunner& runner) {
  return runner.ReadJob([](const Job& job, Instant) {
    return MemoryClaim{Job::NeededBytes(job.spec()), job.spec().quota_bytes, job.reserved_bytes()};
  });
}
}  // namespace

absl::Status JobTable::CheckMemory(const Spec& spec) {
  uint64_t others = 0;
  for (const auto& runner : All()) others += ClaimOf(*runner).needed;
  const uint64_t needed = Job::NeededBytes(spec);
  if (others + needed <= memory_bytes_) return absl::OkStatus();

  // Refuse the job instead of letting it wait: its other daemons would stand idle until another job
  // ends, if one ever does.
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "NO_MEMORY",
                    .catalogue = "SLUICE-QUEUE-0009",
                    .hint = "start sluice-queue with a higher --memory, lower "
                            "rollout.max_response, rollout.group.size or "
                            "queue.groups_per_step, or run the jobs one after the other"},
                   absl::StrCat("the job needs at least ", needed,
                                " B of the queue's memory, other jobs need at least ", others,
                                " B, and the queue may use ", memory_bytes_, " B (--memory)"));
}

// Divides the memory among the jobs anew. It runs on the load thread when a job begins, and else on
// the timer's thread.
void JobTable::Rebalance() {
  std::vector<std::pair<std::string, std::shared_ptr<JobRunner>>> jobs;
  {
    MutexLock lock(&mu_);
    jobs.assign(jobs_.begin(), jobs_.end());
  }
  std::vector<MemoryClaim> claims;
  for (const auto& [id, runner] : jobs) claims.push_back(ClaimOf(*runner));

  const std::vector<uint64_t> shares = FairShares(memory_bytes_, claims);
  for (size_t i = 0; i < jobs.size(); ++i) {
    {
      MutexLock lock(&mu_);
      uint64_t& last_share = shares_.try_emplace(jobs[i].first, claims[i].quota).first->second;
      if (last_share == shares[i]) continue;
      last_share = shares[i];
    }
    jobs[i].second->SetMemoryShare(shares[i]);
  }
}

// Recovery. ---------------------------------------------------------------------------------------

absl::Status JobTable::Recover() {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, folders_.List());
  for (const std::string& job : jobs) {
    const auto arena = std::make_shared<Arena>();
    absl::StatusOr<StoredJob> stored = folders_.Recover(job, arena.get());
    if (!stored.ok()) {
      log::Error("job_refused", {{"job", job},
                                 {"message", stored.status().message()},
                                 {"hint", DetailOf(stored.status()).hint}});
    }

    MutexLock lock(&mu_);
    if (!stored.ok()) {
      refused_.emplace(job, Annotate(stored.status(), absl::StrCat("job ", job, " cannot go on")));
    } else if (stored->job != nullptr) {
      recovered_.emplace(job, Recovered{*std::move(stored), arena});
    }
  }

  int64_t incarnation = 0;
  {
    MutexLock lock(&mu_);
    incarnation = incarnation_;
  }
  if (incarnation > 0) SetIncarnation(incarnation);
  return absl::OkStatus();
}

// Threads. ----------------------------------------------------------------------------------------

void JobTable::LoadLoop() {
  while (true) {
    std::function<void()> load;
    {
      MutexLock lock(&mu_);
      while (loads_.empty() && !stopped_) load_.Wait(&mu_);
      if (loads_.empty()) return;
      load = std::move(loads_.front());
      loads_.pop_front();
    }
    load();
  }
}

// It takes the lock of each job at least each kRebalance, so that a job whose lock is never free
// again stops this loop, and the watchdog sees it.
void JobTable::TimerLoop() {
  Watchdog::Loop loop(ProcessWatchdog(), "timer");
  Instant rebalance = options_.clock->Monotonic() + kRebalance,
          trim = options_.clock->Monotonic() + kTrim;
  while (true) {
    loop.Tick();
    SLUICE_FAILPOINT("queue.timer");
    std::vector<std::shared_ptr<JobRunner>> due;
    {
      MutexLock lock(&mu_);
      while (!stopped_ && std::min(wake_, rebalance) > options_.clock->Monotonic()) {
        timer_.WaitFor(&mu_, std::min(std::min(wake_, rebalance) - options_.clock->Monotonic(),
                                      absl::Seconds(60)));
      }
      if (stopped_) return;
      wake_ = absl::InfiniteDuration();
      for (const auto& [id, runner] : jobs_) due.push_back(runner);
    }

    for (const auto& runner : due) {
      const Instant next = runner->NextWake();
      if (next <= options_.clock->Monotonic()) {
        runner->Tick();
        continue;
      }
      MutexLock lock(&mu_);
      wake_ = std::min(wake_, next);
    }

    const Instant now = options_.clock->Monotonic();
    if (now < rebalance) continue;
    rebalance = now + kRebalance;
    Rebalance();
    if (now < trim) continue;
    trim = now + kTrim;
    for (const auto& runner : due) runner->arena()->Trim();
  }
}

void JobTable::Stop() {
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    stopped_ = true;
    load_.NotifyAll();
    timer_.NotifyAll();
  }
  load_thread_.join();
  timer_thread_.join();
  for (const auto& runner : All()) {
    runner->Stop(ErrorWith(absl::StatusCode::kUnavailable,
                           {.reason = "SHUTTING_DOWN", .retry_after = absl::Seconds(1)},
                           "the queue is shutting down"));
  }
}

}  // namespace sluice::queue
