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

// Who may make calls for a job, and under which incarnation. Each call's JobRef is checked against
// the controller's list of workers.
//
// Incarnations only rise. For each worker, the highest incarnation ever listed is valid and older
// ones are refused. The trainers of a job form a group, which shares one incarnation: for them the
// highest listed one of any trainer is valid.
//
// Thread-safe.
class CallerTable {
 public:
  struct Worker {
    std::string id;
    Role role = Role::kUnspecified;
    int64_t incarnation = 0;
  };

  // Replaces the list of the workers of `job`.
  void SetJob(absl::string_view job, absl::Span<const Worker> workers) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets the job and its incarnations.
  void RemoveJob(absl::string_view job) ABSL_LOCKS_EXCLUDED(mu_);

  // Checks a caller.
  // OK: `worker` is listed for `job` with `incarnation` and one of `roles`.
  // OK: `worker` was never listed for `job`, `incarnation` is 0, and `roles` contains kController
  // or kOperator. They are in no list, so their word is trusted.
  // ABORTED FENCED: a higher incarnation is listed; `current` is that incarnation.
  // UNAVAILABLE NOT_LISTED, with a time to retry: the job, the worker or the incarnation is not
  // known here yet.
  // PERMISSION_DENIED WRONG_ROLE: the worker's role is not one of `roles`.
  absl::Status Check(absl::string_view job, absl::string_view worker, int64_t incarnation,
                     absl::Span<const Role> roles) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Role role;
    int64_t incarnation;
    // False if the worker has left the list. The entry stays, so that its old incarnations stay
    // fenced.
    bool listed;
  };
  struct Job {
    int64_t trainer_incarnation = 0;  // Highest incarnation of a listed trainer.
    absl::flat_hash_map<std::string, Entry> workers;
  };

  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Job> jobs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rpc
