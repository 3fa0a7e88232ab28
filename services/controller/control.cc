#include "services/controller/control.h"

#include <google/protobuf/util/message_differencer.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/policy/policy.h"
#include "services/controller/callers.h"
#include "services/controller/core/codec.h"
#include "services/controller/live_keys.h"
#include "services/controller/spec.h"

namespace sluice::controller {
namespace {

using job::v1::ControlRequest;

absl::Status NotServed(absl::string_view what) {
  return Error(absl::StatusCode::kUnimplemented, "NOT_BUILT",
               absl::StrCat(what, " is not implemented in this build"));
}

// A quota may have become smaller since the job was submitted, and its pool another's.
absl::Status CheckQuotaAgain(const Policy& policy, const Person& person, const std::string& spec) {
  const Policy::Quota* const quota = FindQuotaOf(policy, person);
  job::v1::JobSpec parsed;
  if (quota == nullptr || !parsed.ParseFromString(spec)) return absl::OkStatus();
  return CheckQuota(*quota, person.name, parsed);
}

absl::StatusOr<bool> ResumeJob(Controller& core, Instant now, const Policy& policy,
                               const Person& person, const Job& job) {
  if (job.record.state == JobState::kPaused)
    SLUICE_RETURN_IF_ERROR(CheckQuotaAgain(policy, person, job.spec));
  return core.Resume(now, job.record.id);
}

absl::StatusOr<bool> RetryJob(Controller& core, Instant now, meta::Store& store,
                              const Policy& policy, const Person& person, const Job& job,
                              const ControlRequest& request) {
  const Policy::Quota* const quota = FindQuotaOf(policy, person);
  RetryInput input{.job = job.record.id,
                   .incarnation = request.incarnation(),
                   .stored = {},
                   .max_jobs = quota == nullptr ? std::nullopt : quota->jobs};
  if (IsFinal(job.record.state)) {
    SLUICE_ASSIGN_OR_RETURN(input.stored, ReadStoredJob(&store, job.record.id));
    SLUICE_RETURN_IF_ERROR(CheckQuotaAgain(policy, person, input.stored.spec));
  }
  return core.Retry(now, input);
}

// The rollouts that the owner's other jobs are sure to have.
int CountOtherRollouts(const Controller& core, const Job& job) {
  int count = 0;
  for (const std::string& id : core.active()) {
    const Job& other = core.jobs().at(id);
    if (&other != &job && other.live() && other.started() && other.record.owner == job.record.owner)
      count += other.record.needs.rollouts.min;
  }
  return count;
}

absl::StatusOr<bool> SetValues(Controller& core, Instant now, const Policy& policy,
                               const Person& person, const Job& job,
                               const ControlRequest& request) {
  // The spec of a job that is over is in the store alone, and SetSpec() refuses that job.
  if (job.spec.empty()) return core.SetSpec(now, job.record.id, "", job.record.needs, "");

  job::v1::JobSpec before;
  before.ParseFromString(job.spec);
  const std::map<std::string, std::string> values(request.set().begin(), request.set().end());
  std::string changes;
  SLUICE_ASSIGN_OR_RETURN(const job::v1::JobSpec spec, SetLiveKeys(before, values, &changes));
  SLUICE_RETURN_IF_ERROR(CheckSpec(spec, policy).status());
  const Needs needs = NeedsOf(spec);
  const Policy::Quota* const quota = FindQuotaOf(policy, person);
  if (quota != nullptr && needs.rollouts.min > job.record.needs.rollouts.min) {
    // A waiting job starts only within the quota, but one that runs gets its minimum in any case.
    const int others = job.live() && job.started() ? CountOtherRollouts(core, job) : 0;
    SLUICE_RETURN_IF_ERROR(CheckQuota(*quota, person.name, spec, others));
  }
  // Equal messages may differ in their bytes.
  const bool same = google::protobuf::util::MessageDifferencer::Equals(before, spec);
  return core.SetSpec(now, job.record.id, same ? job.spec : spec.SerializeAsString(), needs,
                      changes);
}

absl::StatusOr<bool> DeleteJob(Controller& core, meta::Store& store, const Job& job) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<meta::Entry> entries,
                          store.List(JobKey(job.record.id, "")));
  std::vector<std::string> keys;
  for (const meta::Entry& entry : entries) keys.push_back(entry.key);
  SLUICE_RETURN_IF_ERROR(core.Delete(job.record.id, keys));
  return false;
}

}  // namespace

std::string VerbName(job::v1::Verb verb) {
  std::string name = absl::AsciiStrToLower(absl::StripPrefix(job::v1::Verb_Name(verb), "VERB_"));
  if (name.empty()) return absl::StrCat("Verb ", static_cast<int>(verb));
  name[0] = absl::ascii_toupper(static_cast<unsigned char>(name[0]));
  return name;
}

absl::Status CheckControl(const ControlRequest& request) {
  switch (request.verb()) {
    case job::v1::VERB_PAUSE:
      if (request.keep_warm()) return NotServed("keep_warm of PAUSE");
      return absl::OkStatus();
    case job::v1::VERB_RETRY:
      if (request.has_step()) return NotServed("step of RETRY");
      return absl::OkStatus();
    case job::v1::VERB_CANCEL:
    case job::v1::VERB_RESUME:
    case job::v1::VERB_SET:
    case job::v1::VERB_DELETE:
    case job::v1::VERB_ROLLBACK:
    case job::v1::VERB_RESCORE: return absl::OkStatus();
    case job::v1::VERB_READMIT:
      for (const std::string& group : request.groups()) {
        if (group.size() == 16) continue;
        return absl::InvalidArgumentError(absl::StrCat("a group of READMIT has an id of ",
                                                       group.size(), " bytes, but ids have 16"));
      }
      return absl::OkStatus();
    case job::v1::VERB_PIN:
      return NotServed(absl::StrCat(absl::StripPrefix(job::v1::Verb_Name(request.verb()), "VERB_"),
                                    " of a job"));
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no verb ", static_cast<int>(request.verb()),
          "; use PAUSE, RESUME, CANCEL, RETRY, ROLLBACK, RESCORE, READMIT, SET or DELETE"));
  }
}

absl::StatusOr<bool> DoVerb(Controller& core, Instant now, meta::Store& store, const Policy& policy,
                            const Person& person, const Job& job, const ControlRequest& request) {
  const std::string& id = job.record.id;
  switch (request.verb()) {
    case job::v1::VERB_CANCEL: return core.Cancel(now, id, request.now());
    case job::v1::VERB_PAUSE: return core.Pause(now, id);
    case job::v1::VERB_RESUME: return ResumeJob(core, now, policy, person, job);
    case job::v1::VERB_RETRY: return RetryJob(core, now, store, policy, person, job, request);
    case job::v1::VERB_SET: return SetValues(core, now, policy, person, job, request);
    case job::v1::VERB_DELETE: return DeleteJob(core, store, job);
    default: return CheckControl(request);
  }
}

}  // namespace sluice::controller
