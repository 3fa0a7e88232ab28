#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Seal: a rollout has sampled a member to its end.
namespace sluice::queue {

Item Job::SealMember(const Caller& caller, const SealItem& item) {
  const Group* const group = groups_.Find(item.ref.group);
  if (group == nullptr) return {.status = GroupGoneError(item.lease, item.ref)};
  if (!item.ref.member || *item.ref.member >= group->members.size()) {
    return {.status = Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER",
                            absl::StrCat(item.ref.str(), ": Seal must name one of the group's ",
                                         group->members.size(), " members"))};
  }

  const uint32_t index = *item.ref.member;
  const GroupMember& member = group->members[index];
  const uint64_t watermark = group->prompt.tokens() + member.log.tokens();
  if (member.sealed_by == item.lease) return {.watermark = watermark, .repeat = true};
  if (absl::Status status = CheckSeal(caller, item, *group); !status.ok())
    return {.status = status, .watermark = watermark};

  leases_.End(item.lease, LeaseEnd::kSealed);
  groups_.SealMember(*group, index, item.finish, batches_.version(), now_);
  LengthBin& bin = LengthBinOf(*group, member);
  ++bin.sealed;
  bin.sealed_tokens += static_cast<int64_t>(member.generated);
  admission_.CountSealed(now_ - member.began, batches_.version() - member.began_at);

  // A member that is too old for the next step is too old for all that follow.
  const Verdict verdict = Judge(member, batches_.next_cut(), spec_, engines_.branch());
  if (!verdict.trainable) {
    DropMember(*group, index, verdict.reason);
    return {.watermark = watermark};
  }
  tasks_.StartMemberTasks(*group, index, now_);
  DropOrCompleteGroup(*group, "");
  return {.watermark = watermark};
}

// Whether the caller may seal the member, and with these tokens.
absl::Status Job::CheckSeal(const Caller& caller, const SealItem& item, const Group& group) {
  SLUICE_RETURN_IF_ERROR(CheckLease(caller, item.lease, item.ref, group));
  if (item.finish == Finish::kNone)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_FINISH",
                 absl::StrCat(item.ref.str(), ": finish is unset; say how the member ended"));

  const GroupMember& member = group.members[*item.ref.member];
  const uint64_t watermark = group.prompt.tokens() + member.log.tokens();
  if (item.tokens > watermark) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                 absl::StrCat(item.ref.str(), ": the queue holds ", watermark, " of ", item.tokens,
                              " tokens; send the rest first"));
  }
  if (item.tokens < watermark || item.crc32c != member.log.crc32c()) {
    failures_.RaiseAlarm(
        "bad_crc", absl::StrCat(item.ref.str(), ": sealed with other tokens than were stored"));
    return Error(
        absl::StatusCode::kDataLoss, "BAD_CRC",
        absl::StrCat(item.ref.str(), ": sealed as ", item.tokens, " tokens, CRC ", item.crc32c,
                     "; the queue holds ", watermark, ", CRC ", member.log.crc32c()));
  }

  const std::string missing = tasks_.FindMissingField(member);
  if (missing.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
               absl::StrCat(item.ref.str(), ": put field ", missing, " first; a task needs it"));
}

}  // namespace sluice::queue
