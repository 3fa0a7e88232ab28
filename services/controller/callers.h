#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
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
// PERMISSION_DENIED OTHERS_JOB
absl::Status CheckOwner(const Person& person, const Job& job);

// Writes to the log who asked for a change, and how it ended. `target` may be what the person
// wrote; `kind` says what it names.
void LogAudit(const Person& person, absl::string_view method, absl::string_view target,
              const absl::Status& result, absl::string_view kind = "job");

}  // namespace sluice::controller
