// Measures what the queue's state machine costs on one core: items per second through whole steps
// of the example's shape (32 groups of 8), and the time of a cut of 1024 groups while 100,000 are
// resident.
#include <time.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"
#include "tests/bench/report.h"

namespace sluice::queue {
namespace {

class Rows : public RowSource {
 public:
  uint64_t rows(uint32_t) const override { return 10000; }
  std::string json(uint32_t, uint64_t index) const override {
    return absl::StrCat("{\"answer\":\"", index, "\",\"prompt\":\"", index, "=\"}");
  }
};

// CPU time of this thread, which does all the work, so that other work on the machine does not
// count.
double Seconds() {
  timespec time{};
  SLUICE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// `dtype` is a number of common.v1.Dtype: 10 is I32, 12 is F32, 13 is F64.
template <typename T>
Field Column(const std::string& name, int dtype, const std::vector<T>& values) {
  return {.name = name,
          .dtype = dtype,
          .bytes = Bytes::Copy(
              {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)})};
}

// Drives a job and makes the calls of its workers, all in this thread.
class Driver {
 public:
  Driver(uint32_t groups, uint32_t members, uint32_t staleness) {
    Spec spec;
    spec.groups_per_step = groups;
    spec.group_size = spec.group_min = members;
    spec.max_staleness = staleness;
    spec.quota_bytes = 1ull << 40;
    spec.member_tokens = 64;
    spec.token_bytes = 20;
    spec.sources = {{.name = "rows", .path = "", .weight = 1, .fields = {}}};
    spec.tasks = {{.name = "reward",
                   .needs = {"messages"},
                   .produces = {"reward_status", "task_reward"},
                   .pool = "cpu"}};
    SLUICE_CHECK(Job::CheckSpec(spec).ok());
    job_ = std::make_unique<Job>(Job::Options{.id = std::string(32, 'b')}, spec,
                                 std::make_shared<Rows>());
    SetJob set{.revision = 1,
               .spec = spec,
               .workers = {{"t", WorkerRole::kTrainer, 1},
                           {"r", WorkerRole::kRollout, 1},
                           {"w", WorkerRole::kReward, 1}}};
    Get<SetJobAnswer>(controller_, set);
    Get<RestoreAnswer>(trainer_, Restore{});
    Publish();
  }

  void Publish() {
    const WatchState state = job_->watch();
    AdvanceVersion advance{.next = {1, state.version}};
    if (!state.published.empty()) advance.expected = state.published[0].version;
    Get<AdvanceVersionAnswer>(trainer_, advance);
    Get<RenewAnswer>(rollout_, Renew{.loaded = {{0, {1, state.version}, true}}});
  }
  // Admits up to `room` members, writes them with one message, seals them and scores them.
  void Produce(uint32_t room) {
    const auto admitted = Get<AdmitAnswer>(rollout_, Admit{.request = Request(), .room = room});
    Put put;
    Seal seal;
    const PolicyVersion version = job_->watch().published[0].version;

    for (const queue::Grant& grant : admitted.grants) {
      const Id16 lease = grant.members[0].lease.id;
      put.records.push_back({.owner = {.group = grant.group},
                             .lease = lease,
                             .piece = Piece{.count = 6},
                             .fields = {Column<int32_t>("tokens", 10, {1, 2, 3, 4, 5, 6})}});

      for (const Member& member : grant.members) {
        const TrajectoryRef ref{grant.group, member.member, member.attempt};
        Piece piece{.at = 6,
                    .segment = 1,
                    .role = SegmentRole::kSampled,
                    .count = 6,
                    .trainable = true,
                    .runs = {{version, 6, 0}}};
        put.records.push_back(
            {.owner = ref,
             .lease = member.lease.id,
             .piece = piece,
             .fields = {Column<int32_t>("tokens", 10, {1, 2, 3, 4, 5, 6}),
                        Column<float>("logprobs", 12, {-1, -1, -1, -1, -1, -1})}});
        put.records.push_back(
            {.owner = ref,
             .lease = member.lease.id,
             .fields = {{.name = "messages", .bytes = Bytes::Copy(std::string(80, 'm'))}}});
        seal.items.push_back(
            {.ref = ref, .lease = member.lease.id, .tokens = 12, .finish = Finish::kStop});
      }
    }

    SLUICE_CHECK(Get<PutAnswer>(rollout_, std::move(put)).failed.empty());
    for (SealItem& item : seal.items)
      item.crc32c = job_->group(item.ref.group.ordinal)->members[*item.ref.member].log.crc32c();
    Get<ItemsAnswer>(rollout_, std::move(seal));

    const auto leased = Get<LeaseTasksAnswer>(
        reward_, LeaseTasks{.request = Request(), .rooms = {{"cpu", 1u << 30}}});
    Put scores;
    for (const TaskGrant& task : leased.tasks) {
      scores.records.push_back({.owner = task.owner,
                                .task = task.id,
                                .lease = task.lease.id,
                                .fields = {{.name = "reward_status", .bytes = Bytes::Copy("ok")},
                                           Column<double>("task_reward", 13, {0.5})},
                                .last = true});
    }

    SLUICE_CHECK(Get<PutAnswer>(reward_, std::move(scores)).failed.empty());
  }
  AcquireBatchAnswer Acquire() {
    return Get<AcquireBatchAnswer>(trainer_, AcquireBatch{.k = job_->version()});
  }
  void Apply(const AcquireBatchAnswer& batch) {
    Get<ApplyAnswer>(trainer_,
                     queue::Apply{.k = batch.k, .lease = batch.lease.id, .crc32c = batch.crc32c});
    Get<DurableAnswer>(trainer_, Durable{batch.k + 1, "", job_->ledger().hash});
  }
  const Job& job() const { return *job_; }

 private:
  template <typename T>
  T Get(const Caller& caller, Input input) {
    Effects effects;
    now_ += absl::Microseconds(100);
    job_->Step({.now = now_, .call = ++calls_, .caller = caller, .input = std::move(input)},
               &effects);
    SLUICE_CHECK(effects.answers.size() == 1);
    const auto* status = std::get_if<absl::Status>(&effects.answers[0].second);
    SLUICE_CHECK_MSG(status == nullptr, status == nullptr ? "" : status->ToString());
    return std::get<T>(std::move(effects.answers[0].second));
  }
  Id16 Request() {
    Id16 id;
    std::memcpy(id.bytes.data(), &++requests_, sizeof(requests_));
    return id;
  }

  const Caller controller_{"c", 0}, trainer_{"t", 1}, rollout_{"r", 1}, reward_{"w", 1};
  std::unique_ptr<Job> job_;
  Instant now_ = absl::Seconds(1);
  uint64_t calls_ = 0, requests_ = 0;
};

void Run(const bench::Report& report) {
  {
    Driver driver(32, 8, 2);
    constexpr int kSteps = 300;
    const double start = Seconds();
    for (int step = 0; step < kSteps; ++step) {
      driver.Produce(1 << 20);
      driver.Apply(driver.Acquire());
      driver.Publish();
    }

    const double step = (Seconds() - start) / kSteps;
    // Each trajectory takes six items: grant, piece, whole fields, seal, lease of its task, score.
    // Each group takes one: its prompt.
    const double items = 32 * 8 * 6 + 32;
    report.Add({.name = "queue_core_step_seconds", .value = step, .unit = "s", .runs = kSteps});
    report.Add({.name = "queue_core_items_per_second",
                .value = items / step,
                .unit = "1/s",
                .runs = kSteps});
  }

  {
    // At staleness 97 the steps 0 to 97 are open, which have room for 98 x 1024 > 100,000 groups.
    Driver driver(1024, 1, 97);
    driver.Produce(100000);
    report.Add({.name = "queue_core_groups_resident",
                .value = static_cast<double>(driver.job().Stats().groups.at("accepted")),
                .unit = ""});
    std::vector<double> cuts;

    for (int k = 0; k < 5; ++k) {
      const double start = Seconds();
      const AcquireBatchAnswer batch = driver.Acquire();
      cuts.push_back(Seconds() - start);
      driver.Apply(batch);
    }

    report.Add({.name = "queue_core_cut_1024_seconds",
                .value = bench::Median(cuts),
                .unit = "s",
                .runs = 5});
  }
}
}  // namespace
}  // namespace sluice::queue

int main(int argc, char** argv) {
  CLI::App app("Measures what the queue's state machine costs on one core.");
  bool json = false;
  app.add_flag("--json", json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  sluice::queue::Run(sluice::bench::Report(json));
  return 0;
}
