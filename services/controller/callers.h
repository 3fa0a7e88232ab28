#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/policy/policy.h"
#include "common/rpc/role.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace sluice::controller {

struct Job;

// A person who calls the controller, as the certificate says. The proto files say which roles may
// make a call at all; what is here depends on the job.
struct Person {
  rpc::Role role = rpc::Role::kUnspecified;
  std::string name;  // Empty without certificates.

  bool submitter() const { return role == rpc::Role::kSubmitter; }
};

// Without certificates every caller is an operator without a name.
Person PersonOf(const grpc::ServerContextBase& context);

// Whether the person may see and control the job: a submitter only its own ones.
bool MaySee(const Person& person, const Job& job);
// PERMISSION_DENIED OTHERS_JOB: it may not. The message has nothing of the job but `asked`, by
// which the person has named it.
absl::Status CheckOwner(const Person& person, const Job& job, absl::string_view asked);

// The quota of the person's jobs. Null if there is none, as for operators.
const Policy::Quota* FindQuotaOf(const Policy& policy, const Person& person);

// What an audit line is about.
struct AuditTarget {
  std::string text;          // What the person wrote.
  std::string kind = "job";  // What it names.
  // The job, if the person may see it: the line is then one of the job's. Empty: none.
  std::string job_id, job_name;
};

// Writes to the log who asked for a change, and how it ended, at every log level. Each call of a
// method that its proto file marks as `audited` gives one line: this one, or that of
// rpc::MakeAccessCheck() if the caller's role may not make the call at all.
void LogAudit(const Person& person, absl::string_view method, const AuditTarget& target,
              const absl::Status& result);

}  // namespace sluice::controller
