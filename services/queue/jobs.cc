#include "services/queue/jobs.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/log/log.h"
#include "services/queue/memory.h"

namespace sluice::queue {
namespace {
constexpr absl::Duration kRebalance = absl::Seconds(1);
constexpr absl::Duration kTrim = absl::Seconds(10);

class Datasets : public RowSource {
 public:
  uint64_t rows(uint32_t source) const override { return sets_[source].rows(); }
  std::string json(uint32_t source, uint64_t index) const override { return std::string(sets_[source].json(index)); }
  void Add(Dataset set) { sets_.push_back(std::move(set)); }

 private:
  std::vector<Dataset> sets_;
};

absl::StatusOr<std::shared_ptr<const RowSource>> ReadSources(const std::string& name, const Spec& spec) {
  auto sets = std::make_shared<Datasets>();
  for (const SourceSpec& source : spec.sources) {
    SLUICE_ASSIGN_OR_RETURN(Dataset set, ReadDataset({.name = source.name, .path = source.path, .fields = source.fields, .skip_bad_rows = spec.skip_bad_rows}));
    if (set.skipped() > 0) {
      log::Warning("rows_skipped", {{"job_id", name}, {"source", source.name}, {"rows", set.skipped()}, {"first", set.first_skipped()}});
    }
    sets->Add(std::move(set));
  }
  return sets;
}

absl::Status NotListed(const std::string& job) {
  return ErrorWith(absl::StatusCode::kUnavailable, {.reason = "NOT_LISTED", .retry_after = absl::Milliseconds(100)},
                   absl::StrCat("job ", job, " has not been heard of here yet"));
}
}  // namespace

JobTable::JobTable(Options options)
    : options_(std::move(options)), memory_bytes_(options_.memory_bytes > 0 ? options_.memory_bytes : DefaultMemory()), incarnation_(options_.incarnation), load_thread_([this] { LoadLoop(); }), timer_thread_([this] { TimerLoop(); }) {}

JobTable::~JobTable() { Shut(); }

void JobTable::SetIncarnation(int64_t incarnation) {
  MutexLock lock(&mu_);
  incarnation_ = incarnation;
}

absl::StatusOr<std::shared_ptr<JobRunner>> JobTable::Find(const std::string& job) {
  MutexLock lock(&mu_);
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return NotListed(job);
  return it->second;
}

std::vector<std::shared_ptr<JobRunner>> JobTable::All() {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<JobRunner>> all;
  for (const auto& [id, runner] : jobs_) all.push_back(runner);
  return all;
}

void JobTable::SetJob(const std::string& job, const std::string& name, const Caller& caller, queue::SetJob input, JobRunner::Done done) {
  std::shared_ptr<JobRunner> runner;
  {
    MutexLock lock(&mu_);
    if (const auto it = jobs_.find(job); it != jobs_.end()) {
      runner = it->second;
    } else if (!shut_) {
      loads_.push_back([this, job, name, caller, input = std::move(input), done = std::move(done)]() mutable {
        Load(job, name, caller, std::move(input), std::move(done));
      });
      load_.NotifyOne();
      return;
    }
  }
  if (runner == nullptr) return done(absl::UnavailableError("the queue is shutting down"));
  Forward(runner, job, caller, std::move(input), std::move(done));
}

// On the load thread. A second SetJob of the same job may have come before this one.
void JobTable::Load(const std::string& job, const std::string& name, const Caller& caller, queue::SetJob input, JobRunner::Done done) {
  if (const auto found = Find(job); found.ok()) return Forward(*found, job, caller, std::move(input), std::move(done));
  if (input.phase == Phase::kFreed) return done(SetJobAnswer{.repeat = true});  // Gone before.
  int64_t incarnation = 0;
  {
    MutexLock lock(&mu_);
    incarnation = incarnation_;
  }
  if (incarnation == 0) {
    return done(ErrorWith(absl::StatusCode::kUnavailable, {.reason = "NOT_REGISTERED", .retry_after = absl::Milliseconds(50)},
                          "the queue has not been told its incarnation yet"));
  }
  if (absl::Status status = Job::Check(input.spec); !status.ok()) return done(std::move(status));
  if (absl::Status status = CheckMemory(input.spec); !status.ok()) return done(std::move(status));
  absl::StatusOr<std::shared_ptr<const RowSource>> rows = ReadSources(name, input.spec);
  if (!rows.ok()) return done(rows.status());
  JobRunner::Options options{.job = {.id = job, .queue_incarnation = static_cast<uint32_t>(incarnation)}, .name = name.empty() ? job : name, .clock = options_.clock};
  std::memcpy(&options.job.seed, RandomId16().data(), sizeof(options.job.seed));
  if (options_.books) {
    options.books = [this, job, incarnation](std::shared_ptr<const BookEntry> entry) { options_.books(job, incarnation, std::move(entry)); };
  }
  options.wake = [this](Instant when) {
    MutexLock lock(&mu_);
    if (when >= wake_) return;
    wake_ = when;
    timer_.NotifyOne();
  };
  std::shared_ptr<JobRunner> runner;
  {
    MutexLock lock(&mu_);
    runner = std::make_shared<JobRunner>(std::move(options), input.spec, *std::move(rows));
    jobs_.emplace(job, runner);
  }
  Rebalance();
  log::Info("job_set", {{"job_id", runner->name()}, {"job", job}});
  if (options_.added) options_.added(runner);
  Forward(runner, job, caller, std::move(input), std::move(done));
}

void JobTable::Forward(const std::shared_ptr<JobRunner>& runner, const std::string& job, const Caller& caller, queue::SetJob input, JobRunner::Done done) {
  const bool freed = input.phase == Phase::kFreed;
  runner->Run(caller, std::move(input), [this, freed, job, done = std::move(done)](Reply reply) {
    if (freed && std::holds_alternative<SetJobAnswer>(reply)) Remove(job);
    done(std::move(reply));
  });
}

void JobTable::Remove(const std::string& job) {
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
  runner->Shut(NotListed(job));
  log::Info("job_freed", {{"job_id", runner->name()}, {"job", job}});
}

namespace {
MemoryClaim ClaimOf(JobRunner& runner) {
  return runner.Look([](const Job& job, Instant) { return MemoryClaim{Job::NeededBytes(job.spec()), job.spec().quota_bytes, job.reserved_bytes()}; });
}
}  // namespace

absl::Status JobTable::CheckMemory(const Spec& spec) {
  uint64_t others = 0;
  for (const auto& runner : All()) others += ClaimOf(*runner).needed;
  const uint64_t needed = Job::NeededBytes(spec);
  if (others + needed <= memory_bytes_) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kResourceExhausted,
                   {.reason = "NO_MEMORY", .hint = "start sluice-queue with a higher --memory, lower rollout lengths or groups per step, or run the jobs one after the other"},
                   absl::StrCat("the job needs ", needed, " B of the queue's memory at the least, other jobs need ", others, " B; the queue may use ", memory_bytes_, " B"));
}

// On the load thread as a job begins, then on the timer's.
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
      uint64_t& told = shares_.try_emplace(jobs[i].first, claims[i].quota).first->second;
      if (told == shares[i]) continue;
      told = shares[i];
    }
    jobs[i].second->SetMemoryShare(shares[i]);
  }
}

void JobTable::LoadLoop() {
  while (true) {
    std::function<void()> load;
    {
      MutexLock lock(&mu_);
      while (loads_.empty() && !shut_) load_.Wait(&mu_);
      if (loads_.empty()) return;
      load = std::move(loads_.front());
      loads_.pop_front();
    }
    load();
  }
}

void JobTable::TimerLoop() {
  Instant rebalance = options_.clock->Monotonic() + kRebalance, trim = options_.clock->Monotonic() + kTrim;
  while (true) {
    std::vector<std::shared_ptr<JobRunner>> due;
    {
      MutexLock lock(&mu_);
      while (!shut_ && std::min(wake_, rebalance) > options_.clock->Monotonic()) {
        timer_.WaitFor(&mu_, std::min(std::min(wake_, rebalance) - options_.clock->Monotonic(), absl::Seconds(60)));
      }
      if (shut_) return;
      wake_ = absl::InfiniteDuration();
      for (const auto& [id, runner] : jobs_) due.push_back(runner);
    }
    for (const auto& runner : due) {
      if (runner->NextWake() <= options_.clock->Monotonic()) {
        runner->Tick();
        continue;
      }
      const Instant next = runner->NextWake();
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

void JobTable::Shut() {
  {
    MutexLock lock(&mu_);
    if (shut_) return;
    shut_ = true;
    load_.NotifyAll();
    timer_.NotifyAll();
  }
  load_thread_.join();
  timer_thread_.join();
  for (const auto& runner : All()) {
    runner->Shut(ErrorWith(absl::StatusCode::kUnavailable, {.reason = "SHUTTING_DOWN", .retry_after = absl::Seconds(1)}, "the queue is shutting down"));
  }
}

}  // namespace sluice::queue
