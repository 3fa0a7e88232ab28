#pragma once

#include <string>

#include "sluice/queue/v1/queue.pb.h"

namespace sluice {

// The spec of a small job, as a controller would send it to a queue, for tests and benchmarks to
// change: steps of 2 groups of 2 trajectories, staleness 1, the rows of one JSONL file, one reward
// task per trajectory, and nothing kept on disk.
inline queue::v1::QueueSpec SmallQueueSpec(const std::string& rows) {
  queue::v1::QueueSpec spec;
  spec.set_job_name("small");
  spec.set_seed(1);
  spec.add_policies("policy");
  spec.mutable_queue()->set_groups_per_step(2);
  spec.set_group_size(2);
  spec.set_group_min(2);
  spec.mutable_queue()->set_max_staleness(1);
  spec.mutable_queue()->mutable_admission()->set_statistic("masked");
  spec.mutable_queue()->mutable_straggler()->set_policy("mask");
  spec.mutable_queue()->mutable_straggler()->mutable_wait()->set_seconds(60);
  spec.mutable_queue()->mutable_straggler()->set_min_trainable(1);
  spec.mutable_queue()->mutable_keep()->set_durability("memory");
  spec.mutable_queue()->mutable_keep()->set_quota(1 << 28);
  spec.mutable_queue()->mutable_keep()->mutable_lease()->set_seconds(60);
  spec.set_member_tokens(64);
  spec.set_token_bytes(20);
  queue::v1::Source& source = *spec.add_sources();
  source.set_name("rows");
  source.set_path(rows);
  source.set_weight(1);
  spec.set_sampler(queue::v1::SAMPLER_UNIFORM);
  spec.set_filter(queue::v1::GROUP_FILTER_NONE);
  queue::v1::TaskSpec& task = *spec.add_tasks();
  task.set_name("reward");
  task.add_needs("messages");
  task.add_produces("reward_status");
  task.add_produces("task_reward");
  task.set_granularity(common::v1::GRANULARITY_TRAJECTORY);
  task.set_pool("cpu");
  task.mutable_deadline()->set_seconds(10);
  task.set_tries(3);
  return spec;
}

}  // namespace sluice
