#include "common/rpc/caller.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::rpc {
namespace {

// How long a caller that is not listed is told to wait: by then the controller's list may have
// arrived.
constexpr absl::Duration kListDelay = absl::Milliseconds(50);

bool IsNeverListed(Role role) { return role == Role::kController || role == Role::kOperator; }

absl::Status NotListed(absl::string_view what) {
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "NOT_LISTED", .retry_after = kListDelay},
                   absl::StrCat(what, " is not known here yet"));
}

absl::Status WrongRole(absl::string_view worker, Role role) {
  return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
               absl::StrCat("worker '", worker, "' is a ", RoleName(role),
                            ", which may not make this call"));
}

}  // namespace

void CallerTable::SetJob(absl::string_view job, absl::Span<const Worker> workers) {
  MutexLock lock(&mu_);
  Job& known = jobs_[std::string(job)];
  // Workers that left the list keep their entry, so that their old incarnations stay fenced.
  for (auto& [id, entry] : known.workers) entry.listed = false;
  for (const Worker& worker : workers) {
    Entry& entry =
        known.workers.try_emplace(worker.id, Entry{worker.role, worker.incarnation, true})
            .first->second;
    entry = {worker.role, std::max(entry.incarnation, worker.incarnation), true};
    if (worker.role == Role::kTrainer)
      known.trainer_incarnation = std::max(known.trainer_incarnation, worker.incarnation);
  }
}

void CallerTable::RemoveJob(absl::string_view job) {
  MutexLock lock(&mu_);
  jobs_.erase(std::string(job));
}

absl::Status CallerTable::Check(absl::string_view job, absl::string_view worker,
                                int64_t incarnation, absl::Span<const Role> roles) const {
  MutexLock lock(&mu_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return NotListed(absl::StrCat("job ", job));

  const auto at = found->second.workers.find(worker);
  if (at == found->second.workers.end()) {
    if (incarnation == 0 && absl::c_any_of(roles, IsNeverListed)) return absl::OkStatus();
    return NotListed(absl::StrCat("worker '", worker, "'"));
  }

  const Entry& entry = at->second;
  // A trainer is fenced by the whole trainer group's incarnation, any other worker by its own.
  const int64_t highest =
      entry.role == Role::kTrainer ? found->second.trainer_incarnation : entry.incarnation;
  // This comes first: a fenced caller must stop, whereas one that is not listed tries again.
  if (incarnation < highest) {
    return ErrorWith(absl::StatusCode::kAborted,
                     {.reason = "FENCED", .current = absl::StrCat(highest)},
                     absl::StrCat("worker '", worker, "' calls as incarnation ", incarnation, "; ",
                                  highest, " has taken over"));
  }

  if (!entry.listed) return NotListed(absl::StrCat("worker '", worker, "'"));
  if (incarnation > highest)
    return NotListed(absl::StrCat("incarnation ", incarnation, " of worker '", worker, "'"));
  if (!absl::c_linear_search(roles, entry.role)) return WrongRole(worker, entry.role);
  return absl::OkStatus();
}

}  // namespace sluice::rpc
