#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// AdvanceVersion: the trainer publishes the version that engines are to load.
namespace sluice::queue {

absl::StatusOr<AdvanceVersionAnswer> Job::OnAdvanceVersion(const Caller& caller,
                                                           const AdvanceVersion& input) {
  SLUICE_RETURN_IF_ERROR(callers_.CheckNotFenced(caller, WorkerRole::kTrainer));
  const std::optional<PolicyVersion>& published = engines_.published();
  if (published == input.next) {
    ++counters_.repeats["AdvanceVersion"];
    return AdvanceVersionAnswer{.repeat = true, .current = *published};
  }

  SLUICE_RETURN_IF_ERROR(callers_.CheckListed(caller, WorkerRole::kTrainer));
  SLUICE_RETURN_IF_ERROR(CheckRestored());
  if (input.policy != 0)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_POLICY",
                 absl::StrCat("policy is ", input.policy, ", but the job has only policy 0"));
  const int64_t version = batches_.version();
  if (input.next.incarnation != caller.incarnation || input.next.number < 0 ||
      input.next.number > version) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_VERSION",
                 absl::StrCat("next ", input.next.str(), " must be of incarnation ",
                              caller.incarnation, " and at most K = ", version));
  }
  if (input.expected != published || (published && input.next <= *published)) {
    const std::string current = published ? published->str() : "none";
    return ErrorWith(
        absl::StatusCode::kAborted, {.reason = "LOST_RACE", .current = current},
        absl::StrCat("the published version is ", current, "; the call expected ",
                     input.expected ? input.expected->str() : "none", " and wants to publish ",
                     input.next.str(), ", which must be newer"));
  }

  engines_.Publish(input.next);
  effects_->watch = true;
  return AdvanceVersionAnswer{.current = input.next};
}

}  // namespace sluice::queue
