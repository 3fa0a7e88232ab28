#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "services/controller/core/controller.h"
#include "services/controller/core/types.h"
#include "services/controller/core/why.h"

namespace sluice::common::v1 {
class Event;
class Ledger;
class WaitEdge;
class Worker;
}  // namespace sluice::common::v1
namespace sluice::job::v1 {
class JobResult;
class JobStatus;
class StepReport;
}  // namespace sluice::job::v1
namespace sluice::registry::v1 {
class HeartbeatRequest;
class HeartbeatResponse;
class RegisterRequest;
}  // namespace sluice::registry::v1
namespace sluice::rpc::v1 {
enum Role : int;
}  // namespace sluice::rpc::v1

// Translates between the core's structs and the messages of the wire. Ids and digests are bytes in
// messages and hex in the core.
namespace sluice::controller {

rpc::v1::Role ToProto(Role role);
// INVALID_ARGUMENT: daemons of this role do not register.
absl::StatusOr<Role> RoleFromProto(rpc::v1::Role role);

void ToProto(const Event& event, common::v1::Event* out);
void ToProto(const StepReport& step, const std::string& job, job::v1::StepReport* out);
void ToProto(const Ledger& ledger, common::v1::Ledger* out);
Ledger FromProto(const common::v1::Ledger& ledger);
void ToProto(const Result& result, job::v1::JobResult* out);
void ToProto(const Worker& worker, common::v1::Worker* out);
void ToProto(const Edge& edge, common::v1::WaitEdge* out);
Edge FromProto(const common::v1::WaitEdge& edge);
// Fills in everything but the spec and the result.
void ToProto(const Job& job, job::v1::JobStatus* out);

// INVALID_ARGUMENT: the role does not register, or the boot id does not have 16 bytes.
absl::StatusOr<RegisterInput> FromProto(const registry::v1::RegisterRequest& request);
HeartbeatInput FromProto(const registry::v1::HeartbeatRequest& request, uint64_t stream);
// `core` provides the specs of the jobs in `desired`.
void ToProto(const DesiredState& desired, const Controller& core,
             registry::v1::HeartbeatResponse* out);

}  // namespace sluice::controller
