#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/collective/port_range.h"
#include "common/weights/publisher.h"
#include "services/trainer/core/canary.h"
#include "services/trainer/core/memory_plan.h"
#include "services/trainer/core/settings.h"

namespace sluice::registry::v1 {
class Assignment;
}

namespace sluice::trainer {

// The settings of a job that its trainer needs.
struct JobConfig {
  std::string id;  // 32 hex digits.
  std::string name;
  int64_t incarnation = 0;  // Incarnation of the job's trainers.
  std::string queue;        // HOST:PORT
  Settings settings;
  MemoryPlanInput plan;  // Without the model's configuration.

  // The ranks that train the job together.
  struct Ranks {
    int rank = 0, world = 1;
    std::string rendezvous;  // HOST:PORT of rank 0.
    std::string host;        // Where other ranks reach this one. Empty: nowhere.
    PortRange ports;         // Of `host`.
    absl::Duration timeout;  // After which a rank that moves no data counts as lost.
  } ranks;
  std::string broadcast;  // weights.broadcast; empty: none.
  uint64_t seed = 1;

  // Directory with the weights, or with the configuration alone if init_seed is set.
  std::string model_dir;
  std::optional<uint64_t> init_seed;  // Seed of random weights.
  std::string teacher_dir;            // Empty if there is no teacher.
  std::string critic_dir;             // Empty: a critic begins with the model's weights.
  std::string chat_template;          // For supervised data: `model`, `none` or a file.
  struct Source {
    std::string name, format;
    // From the name of a row's field to its name in the file.
    std::map<std::string, std::string> columns;
    std::string path;  // The file. The rows of `sources` come from the queue.
  };
  std::vector<Source> sources;  // For supervised data.
  bool skip_bad_rows = false;   // A row of supervised data that cannot be used is left out.
  // Most tokens of a row of supervised data; longer rows are not trained on.
  int64_t max_context = 0;

  std::string checkpoint_dir;           // The job's own folder below checkpoint.dir.
  std::string weights_dir;              // The one below weights.dir; empty: there is none.
  int64_t checkpoint_every_steps = 20;  // 0: not by number of steps.
  absl::Duration checkpoint_every = absl::InfiniteDuration();
  int keep_last = 3;
  int64_t keep_every_steps = 0;
  int64_t max_shard_bytes = 0;          // Of a checkpoint's files.
  std::optional<int64_t> from_version;  // Start a new branch from the checkpoint of this version.
  // If true, batches after the checkpoint are not trained again as they were; their groups go back
  // to the queue and compete for places in new batches.
  bool requeue = false;

  int64_t publish_every_steps = 1;
  int retain_versions = 4;  // Number of newest versions whose weights can be fetched.
  WeightEncoding encoding = WeightEncoding::kAuto;
  std::optional<CanaryRules> canary;  // Nullopt: new versions go to all rollouts at once.
  int64_t max_steps = -1;             // -1: no limit.

  int64_t eval_every_steps = 0;       // 0: no evaluations.
  std::vector<Source> eval_sources;   // The datasets.
  std::vector<std::string> rollouts;  // HOST:PORT of the rollouts at the start.

  // Whether the job trains on the answers of rows: kinds sft and dpo.
  bool supervised() const { return settings.kind != Settings::Kind::kRl; }

  // Whether no version follows `version`.
  bool IsLast(int64_t version) const { return max_steps >= 0 && version >= max_steps; }
};

// HOST:PORT of the rollouts that work for the job.
std::vector<std::string> RolloutsOf(const registry::v1::Assignment& assignment);

// Reads the settings out of an assignment, but for ranks.host and ranks.ports.
// INVALID_ARGUMENT: a value is not allowed.
// UNIMPLEMENTED: this build's trainer lacks something that the job needs.
// The messages name the key of the job file.
absl::StatusOr<JobConfig> ConfigOf(const registry::v1::Assignment& assignment);

}  // namespace sluice::trainer
