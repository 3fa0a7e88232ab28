#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/spec_problems.h"

namespace sluice::job::v1 {
class JobSpec;
}

namespace sluice {

// What an operator allows jobs to do, from policy.yaml (proto/sluice/policy/v1/policy.proto).
struct Policy {
  // The most that a job may ask for. Durations are in seconds, sizes in bytes.
  struct Cap {
    std::string key;  // "resources.rollout.max".
    double most = 0;
    std::string text;  // As the file writes it, such as "8GiB".
  };
  struct Quota {
    std::string submitter;         // "*": each submitter without a row of its own.
    std::optional<uint32_t> jobs;  // Most jobs that have not ended.
    // Most daemons of all its jobs together.
    std::optional<uint32_t> trainers, rollouts;
    // What its jobs may use. Empty: all.
    std::vector<std::string> pools, judges, plugin_servers;
    // Folders below which its jobs may read and write. Empty: what the daemons allow. What may be
    // written may also be read.
    std::vector<std::string> read_roots, write_roots;
  };

  std::vector<Cap> caps;
  std::vector<Quota> quotas;

  // The quota of this submitter. Null: it has none.
  const Quota* FindQuota(absl::string_view submitter) const;
};

// Reads a policy file. INVALID_ARGUMENT BAD_CONFIG: one line for each problem, with its place.
absl::StatusOr<Policy> ReadPolicy(const std::string& path);

// The values of `spec` that exceed a cap, as SLUICE-CONFIG-0018. A value that is unset as `none`
// has no limit and exceeds every cap; one that is unset as `auto` exceeds none.
std::vector<SpecProblem> CheckCaps(const Policy& policy, const job::v1::JobSpec& spec);

}  // namespace sluice
