#include "tests/bench/queue/policy_backends.h"

#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::bench {
namespace {

using queue::Caller;

class Gate : public Backend {
 public:
  Gate(const Workload& workload, bool drop) : workload_(workload), drop_(drop) {}

  std::vector<uint64_t> StartRollouts(double, uint32_t room) override {
    std::vector<uint64_t> started;
    const uint64_t limit = (workload_.staleness + version_ + 1) * workload_.batch;
    for (; room > 0 && accepted_ + running_ < limit; --room, ++running_) started.push_back(next_++);
    return started;
  }
  void OnWritten(double, const Rollout&, const VersionRun&) override {}
  void OnFinished(double, const Rollout& rollout) override {
    --running_;
    ++accepted_;
    ready_.push_back({rollout.id, rollout.oldest()});
  }
  std::vector<Trained> CutBatch(double) override {
    if (drop_) {
      std::erase_if(ready_, [&](const auto& done) {
        if (version_ - done.second <= workload_.staleness) return false;
        dropped_.push_back(done.first);
        --accepted_;
        return true;
      });
    }

    std::vector<Trained> batch;
    if (ready_.size() < workload_.batch) return batch;
    for (uint32_t i = 0; i < workload_.batch; ++i) {
      batch.push_back({.id = ready_.front().first});
      ready_.pop_front();
    }

    return batch;
  }
  void OnApplied(double) override { ++version_; }
  std::vector<uint64_t> TakeDropped() override { return std::exchange(dropped_, {}); }
  double admission() const override { return workload_.staleness; }

 private:
  const Workload workload_;
  const bool drop_;
  int64_t version_ = 0;
  uint64_t accepted_ = 0, running_ = 0, next_ = 0;
  std::deque<std::pair<uint64_t, int64_t>> ready_;
  std::vector<uint64_t> dropped_;
};

class Rows : public queue::RowSource {
 public:
  uint64_t rows(uint32_t) const override { return 1000; }
  std::string json(uint32_t, uint64_t) const override { return "{}"; }
};

// The queue's state machine, with groups of one trajectory and without rewards. The id of a rollout
// is the ordinal of its group.
class Queue : public Backend {
 public:
  Queue(const Workload& workload, queue::Straggler straggler, bool automatic)
      : spec_(MakeSpec(workload, straggler, automatic)) {
    SLUICE_CHECK(queue::Job::CheckSpec(spec_).ok());
    job_ = std::make_unique<queue::Job>(queue::Job::Options{.id = std::string(32, 'b')}, spec_,
                                        std::make_shared<Rows>());
    queue::SetJob set{.revision = 1, .spec = spec_};
    set.workers = {{"t", queue::WorkerRole::kTrainer, 1}, {"r", queue::WorkerRole::kRollout, 1}};
    Get<queue::SetJobAnswer>(0, {"c", 0}, set);
    Get<queue::RestoreAnswer>(0, trainer_, queue::Restore{});
    Publish(0);
  }

  std::vector<uint64_t> StartRollouts(double now, uint32_t room) override {
    const auto ask = [&] {
      if (!admit_) admit_ = Send(now, rollout_, queue::Admit{.request = Request(), .room = room});
      return TakeAnswer<queue::AdmitAnswer>(admit_);
    };

    std::vector<uint64_t> started;
    auto admitted = ask();
    // The wait of a parked Admit may have run out before now, so ask again.
    if (admitted && admitted->grants.empty()) admitted = ask();
    if (!admitted) return started;

    for (const queue::Grant& grant : admitted->grants) {
      started.push_back(grant.group.ordinal);
      held_[grant.group.ordinal] = {grant.group, grant.members[0].lease.id};
      Put(now, {.owner = {.group = grant.group},
                .lease = grant.members[0].lease.id,
                .piece = queue::Piece{.count = 1},
                .fields = {Zeros("tokens", 10, 1)}});
    }

    return started;
  }
  void OnWritten(double now, const Rollout& rollout, const VersionRun& run) override {
    const Held& held = held_.at(rollout.id);
    queue::Piece piece{.at = 1 + rollout.written,
                       .segment = 1,
                       .role = queue::SegmentRole::kSampled,
                       .count = run.count,
                       .trainable = true,
                       .runs = {run}};
    Put(now, {.owner = {held.group, 0, 1},
              .lease = held.lease,
              .piece = piece,
              .fields = {Zeros("tokens", 10, run.count), Zeros("logprobs", 12, run.count)}});
  }
  void OnFinished(double now, const Rollout& rollout) override {
    const Held held = held_.at(rollout.id);
    const queue::SealItem item{.ref = {held.group, 0, 1},
                               .lease = held.lease,
                               .tokens = 1 + rollout.tokens,
                               .crc32c = job_->group(rollout.id)->members[0].log.crc32c(),
                               .finish = queue::Finish::kStop};
    const auto sealed = Get<queue::ItemsAnswer>(now, rollout_, queue::Seal{{item}});
    SLUICE_CHECK(sealed.items[0].status.ok());
    held_.erase(rollout.id);
    sealed_.insert(rollout.id);
  }
  std::vector<Trained> CutBatch(double now) override {
    const auto ask = [&] {
      if (!acquire_) acquire_ = Send(now, trainer_, queue::AcquireBatch{.k = job_->version()});
      return TakeAnswer<queue::AcquireBatchAnswer>(acquire_);
    };

    std::vector<Trained> batch;
    auto answer = ask();
    if (answer && !answer->filled) answer = ask();
    if (!answer || !answer->filled) return batch;
    batch_ = *answer;

    for (const queue::BatchGroup& group : answer->groups) {
      Trained trained{.id = group.group.ordinal, .mask = group.members[0].masked};
      // The queue counts from the beginning of the prompt, which has one token.
      for (queue::TokenRun& run : trained.mask) run.first -= 1, trained.masked += run.count;
      batch.push_back(std::move(trained));
      sealed_.erase(group.group.ordinal);
    }

    return batch;
  }
  void OnApplied(double now) override {
    Get<queue::ApplyAnswer>(
        now, trainer_,
        queue::Apply{.k = batch_.k, .lease = batch_.lease.id, .crc32c = batch_.crc32c});
    Get<queue::DurableAnswer>(now, trainer_, queue::Durable{batch_.k + 1, "", job_->ledger().hash});
    Publish(now);
  }
  std::vector<uint64_t> TakeDropped() override {
    std::vector<uint64_t> dropped;
    for (uint64_t id : sealed_) {
      if (job_->group(id) == nullptr) dropped.push_back(id);
    }
    for (uint64_t id : dropped) sealed_.erase(id);
    for (const auto& [id, held] : held_) {
      if (job_->group(id) == nullptr) dropped.push_back(id);
    }
    for (uint64_t id : dropped) held_.erase(id);

    return dropped;
  }
  double admission() const override { return job_->Stats().admission_staleness; }

 private:
  struct Held {
    queue::GroupId group;
    Id16 lease;
  };

  static queue::Spec MakeSpec(const Workload& workload, queue::Straggler straggler,
                              bool automatic) {
    queue::Spec spec;
    spec.groups_per_step = workload.batch;
    spec.max_staleness = workload.staleness;
    if (!automatic) spec.admission_staleness = workload.staleness;
    spec.straggler = straggler;
    // Longer than any simulation: only staleness decides, and no lease runs out.
    spec.wait = absl::Hours(100000);
    spec.lease = absl::Hours(100000);
    spec.quota_bytes = 1ull << 60;
    spec.member_tokens = 1u << 31;
    spec.token_bytes = 8;
    spec.sources = {{.name = "rows", .path = "", .weight = 1, .fields = {}}};

    return spec;
  }
  static queue::Field Zeros(const char* name, int dtype, uint64_t count) {
    static const auto* const kZeros = new std::vector<char>(1 << 22, 0);
    SLUICE_CHECK(4 * count <= kZeros->size());
    return {.name = name,
            .dtype = dtype,
            .bytes = {std::shared_ptr<const char>(std::shared_ptr<void>(), kZeros->data()),
                      4 * count, 0}};
  }
  void Publish(double now) {
    const queue::WatchState state = job_->watch();
    queue::AdvanceVersion advance{.next = {1, state.version}};
    if (!state.published.empty()) advance.expected = state.published[0].version;
    Get<queue::AdvanceVersionAnswer>(now, trainer_, advance);
    Get<queue::RenewAnswer>(now, rollout_, queue::Renew{.loaded = {{0, {1, state.version}, true}}});
  }
  void Put(double now, queue::Record record) {
    SLUICE_CHECK(
        Get<queue::PutAnswer>(now, rollout_, queue::Put{{std::move(record)}}).failed.empty());
  }

  uint64_t Send(double now, const Caller& caller, queue::Input input) {
    queue::Effects effects;
    job_->Step({.now = absl::Seconds(1 + now),
                .call = ++calls_,
                .caller = caller,
                .input = std::move(input)},
               &effects);
    for (auto& [call, reply] : effects.answers) answers_.insert_or_assign(call, std::move(reply));
    return calls_;
  }
  // Takes the answer of `call`, if there is one, which ends the call.
  template <typename T>
  std::optional<T> TakeAnswer(uint64_t& call) {
    const auto it = answers_.find(call);
    if (it == answers_.end()) return std::nullopt;
    const auto* status = std::get_if<absl::Status>(&it->second);
    SLUICE_CHECK_MSG(status == nullptr, status == nullptr ? "" : status->ToString());
    std::optional<T> answer = std::get<T>(std::move(it->second));
    answers_.erase(it);
    call = 0;
    return answer;
  }
  template <typename T>
  T Get(double now, const Caller& caller, queue::Input input) {
    uint64_t call = Send(now, caller, std::move(input));
    return *TakeAnswer<T>(call);
  }
  Id16 Request() {
    Id16 id;
    std::memcpy(id.bytes.data(), &++requests_, sizeof(requests_));
    return id;
  }

  const queue::Spec spec_;
  const Caller trainer_{"t", 1}, rollout_{"r", 1};
  std::unique_ptr<queue::Job> job_;
  uint64_t calls_ = 0, requests_ = 0, admit_ = 0, acquire_ = 0;
  std::map<uint64_t, queue::Reply> answers_;
  std::map<uint64_t, Held> held_;
  std::set<uint64_t> sealed_;  // Sealed, but in no batch yet.
  queue::AcquireBatchAnswer batch_;
};

}  // namespace

std::unique_ptr<Backend> MakeGate(const Workload& workload, bool drop) {
  return std::make_unique<Gate>(workload, drop);
}

std::unique_ptr<Backend> MakeQueue(const Workload& workload, queue::Straggler straggler,
                                   bool automatic) {
  return std::make_unique<Queue>(workload, straggler, automatic);
}

}  // namespace sluice::bench
