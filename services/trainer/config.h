#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/trainer/core/settings.h"

namespace sluice::registry::v1 {
class Assignment;
}

namespace sluice::trainer {

// A job as its trainer needs it.
struct JobConfig {
  std::string id;  // 32 hex digits.
  std::string name;
  int64_t incarnation = 0;  // Of the gang.
  std::string queue;        // HOST:PORT
  Settings settings;
  uint64_t seed = 1;

  std::string model_dir;              // Weights, or with init_seed the configuration alone.
  std::optional<uint64_t> init_seed;  // Random weights.
  std::string chat_template;          // model, none or a file; for supervised data.
  struct Source {
    std::string name, format;
    std::map<std::string, std::string> columns;  // From a row's field to its name in the file.
  };
  std::vector<Source> sources;  // Of supervised data.
  // Tokens of a supervised row; longer ones are not trained on.
  int64_t max_context = 0;

  std::string checkpoint_dir;           // The job's own folder below checkpoint.dir.
  int64_t checkpoint_every_steps = 20;  // 0: not by steps.
  absl::Duration checkpoint_every = absl::InfiniteDuration();
  int keep_last = 3;
  int64_t keep_every_steps = 0;
  std::optional<int64_t> from_version;  // Start from that checkpoint, as a new branch.
  // Batches behind the checkpoint are not trained again as they were; their groups compete anew.
  bool requeue = false;

  int64_t publish_every_steps = 1;
  int retain_versions = 4;
  int64_t max_steps = -1;  // -1: none.

  int64_t eval_every_steps = 0;            // 0: nothing is evaluated.
  std::vector<std::string> eval_datasets;  // Names.
  std::vector<std::string> rollouts;       // HOST:PORT, at the start.

  // Whether no version follows `version`.
  bool IsLast(int64_t version) const { return max_steps >= 0 && version >= max_steps; }
};

// HOST:PORT of the rollouts that work for the job.
std::vector<std::string> RolloutsOf(const registry::v1::Assignment& assignment);

// INVALID_ARGUMENT: a value out of place. UNIMPLEMENTED: something that this build's trainer does
// not have. Both name the key of the job file.
absl::StatusOr<JobConfig> ConfigOf(const registry::v1::Assignment& assignment);

}  // namespace sluice::trainer
