#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/rpc/role.h"

namespace sluice::rpc {

// Who may call for a job, and under which incarnation: the controller's list of workers, held
// against each call's JobRef. Incarnations only rise: of the trainers' gang of a job, and of each
// other worker, the highest ever listed counts.
//
// Thread-safe.
class CallerTable {
 public:
  struct Worker {
    std::string id;
    Role role = Role::kUnspecified;
    int64_t incarnation = 0;
  };

  // Replaces the list of `job`.
  void SetJob(absl::string_view job, absl::Span<const Worker> workers) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveJob(absl::string_view job) ABSL_LOCKS_EXCLUDED(mu_);

  // OK: `worker` is listed for `job` with `incarnation` and one of `roles`. The controller and
  // people's tools are listed in no job: where kController, kSubmitter or kOperator is among
  // `roles`, incarnation 0 is believed to be one. ABORTED FENCED: a higher incarnation is listed.
  // UNAVAILABLE NOT_LISTED, with a time to retry: the job, the worker or the incarnation has not
  // been heard of yet. PERMISSION_DENIED WRONG_ROLE.
  absl::Status Check(absl::string_view job, absl::string_view worker, int64_t incarnation,
                     absl::Span<const Role> roles) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Role role;
    int64_t incarnation;
    bool listed;  // False: gone from the list, kept so that its old incarnations stay fenced.
  };
  struct Job {
    int64_t gang = 0;  // Highest incarnation of a listed trainer.
    absl::flat_hash_map<std::string, Entry> workers;
  };

  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rpc
