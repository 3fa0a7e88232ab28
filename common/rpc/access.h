#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/rpc/identity.h"

namespace grpc {
class AuthMetadataProcessor;
class ServerContextBase;
}  // namespace grpc
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {

// Whether `caller` may call the method of this path, "/sluice.queue.v1.QueueService/Admit". The
// proto files list the roles of each method (sluice.rpc.v1.MethodRule). Methods that they do not
// know, such as those of grpc.health.v1, are open to every caller with an identity.
// PERMISSION_DENIED WRONG_ROLE: the message names the roles that may.
absl::Status CheckRole(absl::string_view path, const Identity& caller);

// The check that a server makes before each call reaches its service: the caller's certificate
// carries an identity of `domain` whose role may make the call. gRPC sends no details with these
// errors, so reason and number stand in front of the message, and FromGrpcStatus() takes them out.
//
// A refused call of a method that the proto file marks as `audited` is an event `audit` in the log.
// It names no job, because the request of such a call is never read.
//
// `metrics` may be null; it outlives the server.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeAccessCheck(std::string domain,
                                                             metrics::Registry* metrics);

// The identity in the certificate of the caller, which MakeAccessCheck() has accepted. Nothing if
// the connection has no TLS.
std::optional<Identity> CallerOf(const grpc::ServerContextBase& context);

// The worker id of a tool of a person: "TOOL@NAME", with the NAME of this process's certificate, or
// "nobody" without one.
std::string ToolId(absl::string_view tool);

// Whether the caller may speak for the daemon or person `id`, as it does in its call. A daemon
// speaks for the id in its certificate. A person's tools have ids of their own, "TOOL@NAME".
// Without TLS the caller's word is believed.
// PERMISSION_DENIED WRONG_ID: its certificate names another.
absl::Status CheckSpeaksFor(const grpc::ServerContextBase& context, absl::string_view id);

// The same for the JobRef of a call: its worker, and its incarnation, which is 0 only for the
// controller and people.
// PERMISSION_DENIED WRONG_INCARNATION: a rollout, reward or trainer calls as incarnation 0.
absl::Status CheckJobRef(const grpc::ServerContextBase& context, absl::string_view worker,
                         int64_t incarnation);

}  // namespace sluice::rpc
