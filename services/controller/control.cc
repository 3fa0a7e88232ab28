#include "services/controller/control.h"

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

namespace sluice::controller {
namespace {

using job::v1::ControlRequest;

absl::Status NotServed(absl::string_view what) {
  return Error(absl::StatusCode::kUnimplemented, "NOT_BUILT",
               absl::StrCat(what, " is not implemented in this build"));
}

absl::StatusOr<bool> RetryJob(Controller& core, Instant now, meta::Store& store,
                              const Policy& policy, const Person& person, const Job& job,
                              const ControlRequest& request) {
  const Policy::Quota* const quota = person.submitter() ? policy.FindQuota(person.name) : nullptr;
  RetryInput input{.job = job.record.id,
                   .incarnation = request.incarnation(),
                   .stored = {},
                   .max_jobs = quota == nullptr ? std::nullopt : quota->jobs};
  if (IsFinal(job.record.state)) {
    SLUICE_ASSIGN_OR_RETURN(input.stored, ReadStoredJob(&store, job.record.id));
  }
  return core.Retry(now, input);
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
  if (!name.empty()) name[0] = absl::ascii_toupper(static_cast<unsigned char>(name[0]));
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
    case job::v1::VERB_DELETE: return absl::OkStatus();
    case job::v1::VERB_SET:
    case job::v1::VERB_ROLLBACK:
    case job::v1::VERB_PIN:
    case job::v1::VERB_RESCORE:
    case job::v1::VERB_READMIT:
      return NotServed(absl::StrCat(absl::StripPrefix(job::v1::Verb_Name(request.verb()), "VERB_"),
                                    " of a job"));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("there is no verb ", static_cast<int>(request.verb()),
                       "; use PAUSE, RESUME, CANCEL, RETRY or DELETE"));
  }
}

absl::StatusOr<bool> DoVerb(Controller& core, Instant now, meta::Store& store, const Policy& policy,
                            const Person& person, const Job& job, const ControlRequest& request) {
  const std::string& id = job.record.id;
  switch (request.verb()) {
    case job::v1::VERB_CANCEL: return core.Cancel(now, id, request.now());
    case job::v1::VERB_PAUSE: return core.Pause(now, id);
    case job::v1::VERB_RESUME: return core.Resume(now, id);
    case job::v1::VERB_RETRY: return RetryJob(core, now, store, policy, person, job, request);
    case job::v1::VERB_DELETE: return DeleteJob(core, store, job);
    default: return CheckControl(request);
  }
}

}  // namespace sluice::controller
