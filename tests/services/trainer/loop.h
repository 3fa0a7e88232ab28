#pragma once

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/metrics/metrics.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "common/queue_client/queue_watch.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "gtest/gtest.h"
#include "services/queue/jobs.h"
#include "services/queue/metrics.h"
#include "services/queue/service.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::trainer {

inline constexpr char kJob[] = "0123456789abcdef0123456789abcdef";

// A real queue in this process. The test sets its job, as the controller would.
class LoopQueue {
 public:
  LoopQueue()
      : metrics_(&registry_), jobs_(queue::JobTable::Options{}), service_(&jobs_, &metrics_) {
    grpc::Service* services[] = {service_.service()};
    absl::StatusOr<std::unique_ptr<rpc::Server>> server = rpc::Server::Start({}, services);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = *rpc::Connect(server_->address(), rpc::kDaemonRoles);
  }

  ~LoopQueue() {
    jobs_.Stop();
    service_.Stop();
  }

  const std::string& address() const { return server_->address(); }
  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }

  // A job that reads its prompts from the file `data`.
  static queue::v1::QueueSpec Spec(const std::string& data, uint32_t groups_per_step,
                                   uint32_t max_staleness) {
    queue::v1::QueueSpec spec;
    spec.set_job_name("loop");
    spec.set_seed(1);
    spec.add_policies("policy");
    spec.mutable_queue()->set_groups_per_step(groups_per_step);
    spec.set_group_size(4);
    spec.set_group_min(4);
    spec.mutable_queue()->set_max_staleness(max_staleness);
    spec.set_max_version_span(max_staleness);
    spec.mutable_queue()->mutable_admission()->set_statistic("masked");
    spec.mutable_queue()->mutable_straggler()->set_policy("mask");
    spec.mutable_queue()->mutable_straggler()->mutable_wait()->set_seconds(60);
    spec.mutable_queue()->mutable_straggler()->set_reissues(2);
    spec.mutable_queue()->mutable_straggler()->set_min_trainable(1);
    spec.mutable_queue()->mutable_keep()->set_durability("memory");
    spec.mutable_queue()->mutable_keep()->set_quota(1 << 28);
    spec.mutable_queue()->mutable_keep()->mutable_lease()->set_seconds(60);
    spec.set_member_tokens(32);
    spec.set_token_bytes(20);

    queue::v1::Source& source = *spec.add_sources();
    source.set_name("digits");
    source.set_path(data);
    source.set_weight(1);
    (*source.mutable_fields())["prompt"] = "digits";
    (*source.mutable_fields())["answer"] = "digits";
    spec.set_sampler(queue::v1::SAMPLER_UNIFORM);

    spec.set_filter(queue::v1::GROUP_FILTER_NONE);
    spec.set_max_rejected_steps(10);

    queue::v1::TaskSpec& task = *spec.add_tasks();
    task.set_name("reward");
    task.add_needs("messages");
    for (const char* field : {"reward_status", "task_reward", "reward_gen"})
      task.add_produces(field);
    task.set_granularity(common::v1::GRANULARITY_TRAJECTORY);
    task.set_pool("cpu");
    task.mutable_deadline()->set_seconds(10);
    task.set_tries(3);
    spec.mutable_sampling()->set_temperature(1);
    spec.mutable_sampling()->set_top_p(1);
    spec.mutable_sampling()->set_max_tokens(8);
    return spec;
  }

  // Lists the workers, with the trainer at incarnation `trainer_incarnation`.
  void SetJob(const queue::v1::QueueSpec& spec, int64_t trainer_incarnation) {
    queue::v1::SetJobRequest request;
    request.mutable_call()->mutable_job()->set_job(kJob);
    request.mutable_call()->mutable_job()->set_worker("controller-0");
    request.set_revision(++revision_);
    *request.mutable_spec() = spec;
    request.set_phase(queue::v1::PHASE_OPEN);

    const auto add = [&](const char* id, rpc::v1::Role role, int64_t incarnation) {
      common::v1::Worker& worker = *request.add_workers();
      worker.set_id(id);
      worker.set_role(role);
      worker.set_incarnation(incarnation);
    };

    add("trainer-0", rpc::v1::ROLE_TRAINER, trainer_incarnation);
    add("rollout-0", rpc::v1::ROLE_ROLLOUT, 1);
    add("reward-0", rpc::v1::ROLE_REWARD, 1);

    queue::v1::SetJobResponse response;
    const absl::Status status = rpc::Call(*channel_, request, &response);
    EXPECT_TRUE(status.ok()) << status;
  }

  // Ends all leases of the trainer, as happens when it has not renewed them in time.
  void EndTrainerLeases(int64_t trainer_incarnation) {
    queue::v1::ReleaseRequest request;
    request.mutable_call()->mutable_job()->set_job(kJob);
    request.mutable_call()->mutable_job()->set_worker("controller-0");
    request.set_worker("trainer-0");
    request.set_incarnation(trainer_incarnation);
    request.set_reason(queue::v1::RELEASE_REASON_LOST);
    queue::v1::ReleaseResponse response;
    const absl::Status status = rpc::Call(*channel_, request, &response);
    EXPECT_TRUE(status.ok()) << status;
    ended_leases_ += response.released();
  }
  // How many of its leases this has ended.
  int64_t ended_leases() const { return ended_leases_; }

  queue::v1::StatsResponse Stats() {
    queue::v1::StatsRequest request;
    request.mutable_call()->mutable_job()->set_job(kJob);
    request.mutable_call()->mutable_job()->set_worker("controller-0");
    queue::v1::StatsResponse response;
    const absl::Status status = rpc::Call(*channel_, request, &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }

 private:
  metrics::Registry registry_;
  queue::Metrics metrics_;
  queue::JobTable jobs_;
  queue::QueueServer service_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<rpc::Channel> channel_;
  uint64_t revision_ = 0;
  int64_t ended_leases_ = 0;
};

// A rollout and a reward, with a thread each. The rollout samples random tokens and says that the
// published version sampled them; the reward follows from the group and the member's number.
class LoopActor {
 public:
  explicit LoopActor(LoopQueue& queue)
      : rollout_(queue.channel(),
                 {.job = kJob, .worker = "rollout-0", .incarnation = 1, .cancel = &cancel_}),
        reward_(queue.channel(),
                {.job = kJob, .worker = "reward-0", .incarnation = 1, .cancel = &cancel_}),
        pieces_(&rollout_),
        scores_(&reward_),
        watch_(&rollout_,
               {.on_change = [this](const queue::v1::WatchResponse& change) { Changed(change); }}),
        sampling_([this] { Sample(); }),
        scoring_([this] { Score(); }) {}
  ~LoopActor() {
    {
      MutexLock lock(&mu_);
      stopped_ = true;
      changed_.NotifyAll();
    }
    cancel_.Trigger();
    sampling_.join();
    scoring_.join();
  }

 private:
  // Reports to the queue that the rollout has loaded the published version.
  void Changed(const queue::v1::WatchResponse& change) {
    if (change.published_size() == 0) return;
    queue::v1::RenewRequest renew;
    *renew.add_loaded() = change.published(0);
    renew.mutable_loaded(0)->set_verified(true);
    if (!rollout_.Renew(renew).ok()) return;
    MutexLock lock(&mu_);
    version_ = change.published(0).version();
    known_ = true;
    changed_.NotifyAll();
  }

  void Sample() {
    {
      MutexLock lock(&mu_);
      while (!known_ && !stopped_) changed_.Wait(&mu_);
    }
    while (true) {
      queue::v1::AdmitRequest admit;
      admit.set_room(32);
      absl::StatusOr<queue::v1::AdmitResponse> granted = rollout_.Admit(admit);
      if (!granted.ok()) return;

      queue::v1::SealRequest seal;
      std::set<std::string> prompts;
      for (const queue::v1::Grant& grant : granted->grants()) {
        for (const queue::v1::Member& member : grant.members())
          Answer(grant, member, prompts, seal);
      }
      if (seal.items_size() == 0) continue;
      if (!pieces_.Flush().ok() || !rollout_.Seal(seal).ok()) return;
    }
  }

  // Errors are ignored: when the test ends, calls are cancelled and puts fail.
  void Put(PutStream& stream, common::v1::Record record, std::string payload) {
    const absl::Status status =
        stream.Put(std::move(record), std::move(payload), [](const PutOutcome&) {});
    (void)status;
  }

  void Answer(const queue::v1::Grant& grant, const queue::v1::Member& member,
              std::set<std::string>& prompts, queue::v1::SealRequest& seal) {
    common::v1::PolicyVersion version;
    {
      MutexLock lock(&mu_);
      version = version_;
    }
    const auto bytes = [](const auto& values) {
      return absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    };

    // The first member of a group brings the prompt.
    const std::vector<int32_t> prompt = {1, 5, 6};
    if (prompts.insert(grant.group()).second) {
      common::v1::Record record;
      record.mutable_owner()->set_group(grant.group());
      record.set_lease(member.lease().id());
      record.mutable_piece()->set_role(common::v1::SEGMENT_ROLE_PROMPT);
      record.mutable_piece()->set_count(3);
      std::string payload;
      AddField("tokens", common::v1::DTYPE_I32, {3}, bytes(prompt), &record, &payload);
      Put(pieces_, std::move(record), std::move(payload));
    }

    const uint32_t count = 2 + static_cast<uint32_t>(random_.Below(5));
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;
    for (uint32_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<int32_t>(3 + random_.Below(11)));
      logprobs.push_back(-3.0f - static_cast<float>(random_.Uniform()));
    }

    common::v1::Record record;
    record.mutable_owner()->set_group(grant.group());
    record.mutable_owner()->set_member(member.member());
    record.mutable_owner()->set_attempt(member.attempt());
    record.set_lease(member.lease().id());
    common::v1::Record whole = record;

    common::v1::Piece& piece = *record.mutable_piece();
    piece.set_at(3);
    piece.set_segment(1);
    piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
    piece.set_count(count);
    piece.set_trainable(true);
    common::v1::VersionRun& run = *piece.add_runs();
    *run.mutable_version() = version;
    run.set_count(count);

    std::string payload;
    AddField("tokens", common::v1::DTYPE_I32, {static_cast<int64_t>(count)}, bytes(tokens), &record,
             &payload);
    AddField("logprobs", common::v1::DTYPE_F32, {static_cast<int64_t>(count)}, bytes(logprobs),
             &record, &payload);
    Put(pieces_, std::move(record), std::move(payload));

    AddInlineField("messages", common::v1::DTYPE_UNSPECIFIED, absl::StrCat("[", tokens[0], "]"),
                   &whole);
    Put(pieces_, std::move(whole), "");

    queue::v1::SealItem& item = *seal.add_items();
    item.mutable_ref()->set_group(grant.group());
    item.mutable_ref()->set_member(member.member());
    item.mutable_ref()->set_attempt(member.attempt());
    item.set_lease(member.lease().id());
    item.set_tokens(3 + count);
    item.set_crc32c(Crc32c(bytes(logprobs), Crc32c(bytes(tokens))));
    item.set_finish(common::v1::FINISH_STOP);
    item.set_turns(1);
  }

  void Score() {
    while (true) {
      queue::v1::LeaseTasksRequest lease;
      queue::v1::Room& room = *lease.add_rooms();
      room.set_pool("cpu");
      room.set_count(64);
      lease.set_generation(1);
      absl::StatusOr<queue::v1::LeaseTasksResponse> leased = reward_.LeaseTasks(lease);
      if (!leased.ok()) return;

      for (const queue::v1::Task& task : leased->tasks()) {
        const double reward =
            static_cast<double>(Crc32c(task.owner().group()) % 7 + task.owner().member()) / 10;

        common::v1::Record record;
        *record.mutable_owner() = task.owner();
        record.set_task(task.id());
        record.set_lease(task.lease().id());
        AddInlineField("reward_status", common::v1::DTYPE_U8, "ok", &record);
        AddInlineField("reward_gen", common::v1::DTYPE_U32, absl::string_view("\1\0\0\0", 4),
                       &record);
        AddInlineField("task_reward", common::v1::DTYPE_F64,
                       absl::string_view(reinterpret_cast<const char*>(&reward), 8), &record);
        record.set_last(true);
        Put(scores_, std::move(record), "");
      }
    }
  }

  rpc::Cancel cancel_;
  Mutex mu_;
  CondVar changed_;
  common::v1::PolicyVersion version_ ABSL_GUARDED_BY(mu_);
  bool known_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  SplitMix64 random_{7};
  QueueClient rollout_, reward_;
  PutStream pieces_, scores_;
  QueueWatch watch_;
  std::thread sampling_, scoring_;
};

}  // namespace sluice::trainer
