#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Drop: a rollout gives up a member, or a whole group.
namespace sluice::queue {

Item Job::DropWork(const Caller& caller, const DropItem& item) {
  if (!IsDropReason(item.reason) || item.reason == "filtered" || item.reason == "closed" ||
      item.reason == "shrunk") {
    return {.status =
                Error(absl::StatusCode::kInvalidArgument, "BAD_REASON",
                      absl::StrCat("\"", item.reason,
                                   "\" is not a reason for which a rollout may drop work, such as "
                                   "env_lost or prompt_too_long"))};
  }
  if (leases_.FindEnd(item.lease) == LeaseEnd::kDropped) return {.repeat = true};

  const Group* const group = groups_.Find(item.ref.group);
  if (group == nullptr) return {.status = GroupGoneError(item.lease, item.ref)};
  if (item.ref.member && *item.ref.member >= group->members.size()) {
    return {.status = Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
                            absl::StrCat(item.ref.str(), ": the group has ", group->members.size(),
                                         " members"))};
  }
  if (absl::Status lease = CheckLease(caller, item.lease, item.ref, *group); !lease.ok())
    return {.status = lease};

  if (item.ref.member) {
    DropMember(*group, *item.ref.member, item.reason);
    return {};
  }
  const RowRef row = group->row;  // The group is gone once it is dropped.
  DropGroup(*group, item.reason);
  failures_.NoteUnusable(row, item.reason);
  return {};
}

}  // namespace sluice::queue
