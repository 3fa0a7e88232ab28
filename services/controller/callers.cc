#include "services/controller/callers.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/access.h"
#include "services/controller/core/job.h"

namespace sluice::controller {

Person PersonOf(const grpc::ServerContextBase& context) {
  std::optional<rpc::Identity> identity = rpc::CallerOf(context);
  if (!identity) return {rpc::Role::kOperator, ""};
  return {identity->role, std::move(identity->name)};
}

bool MaySee(const Person& person, const Job& job) {
  return !person.submitter() || person.name == job.record.owner;
}

absl::Status CheckOwner(const Person& person, const Job& job, absl::string_view asked) {
  if (MaySee(person, job)) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kPermissionDenied,
                   {.reason = "OTHERS_JOB",
                    .catalogue = "SLUICE-AUTH-0012",
                    .hint = "ask its owner or an operator; `sluice job list` shows your own jobs"},
                   absl::StrCat("job ", asked, " is not a job of submitter ", person.name));
}

const Policy::Quota* FindQuotaOf(const Policy& policy, const Person& person) {
  return person.submitter() ? policy.FindQuota(person.name) : nullptr;
}

void LogAudit(const Person& person, absl::string_view method, const AuditTarget& target,
              const absl::Status& result) {
  const log::Field role = {"role", rpc::RoleName(person.role)}, name = {"person", person.name},
                   what = {"method", method}, about = {target.kind, target.text},
                   code = {"result", absl::StatusCodeToString(result.code())},
                   reason = {"reason", ReasonOf(result)};
  if (target.job_id.empty()) return log::WriteAudit("", {role, name, what, about, code, reason});
  log::WriteAudit(target.job_id,
                  {{"job_id", target.job_name}, role, name, what, about, code, reason});
}

}  // namespace sluice::controller
