#include "common/rpc/access.h"

#include <google/protobuf/descriptor.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/server_context.h>

#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/trace.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/credentials.h"
#include "common/rpc/status.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice::rpc {
namespace {

const google::protobuf::MethodDescriptor* FindMethod(absl::string_view path) {
  // "/sluice.queue.v1.QueueService/Admit" is the method sluice.queue.v1.QueueService.Admit.
  absl::ConsumePrefix(&path, "/");
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrReplaceAll(path, {{"/", "."}}));
}

bool MayCall(const v1::MethodRule& rule, Role role) {
  return absl::c_any_of(rule.roles(), [&](int allowed) {
    return allowed == static_cast<int>(role) || allowed == v1::ROLE_ANY ||
           (allowed == v1::ROLE_DAEMON && absl::c_linear_search(kDaemonRoles, role));
  });
}

std::string NameOf(v1::Role role) {
  if (role == v1::ROLE_ANY) return "everyone";
  if (role == v1::ROLE_DAEMON) return "daemons";
  return std::string(RoleName(static_cast<Role>(role)));
}

std::string AllowedNames(const v1::MethodRule& rule) {
  return absl::StrJoin(rule.roles(), ", ", [](std::string* out, int role) {
    absl::StrAppend(out, NameOf(static_cast<v1::Role>(role)));
  });
}

// Roles that work for jobs under an incarnation of their own.
bool IsWorker(Role role) {
  return role == Role::kRollout || role == Role::kReward || role == Role::kTrainer;
}

bool SpeaksFor(const Identity& caller, absl::string_view id) {
  if (absl::c_linear_search(kDaemonRoles, caller.role))
    return caller.name == id || (caller.name == "*" && IsName(id));
  return absl::EndsWith(id, absl::StrCat("@", caller.name));
}

absl::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// The identity that the certificate of the connection carries.
absl::StatusOr<Identity> ReadIdentity(const grpc::AuthContext& context, absl::string_view domain) {
  const std::vector<grpc::string_ref> uris =
      context.FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
  if (uris.size() == 1) return ParseIdentity(View(uris[0]), domain);
  return ErrorWith(absl::StatusCode::kUnauthenticated,
                   {.reason = "BAD_IDENTITY", .catalogue = "SLUICE-AUTH-0003"},
                   "the certificate carries no identity; wanted: one URI "
                   "spiffe://DOMAIN/sluice/ROLE/NAME");
}

// Writes the audit line of a refused call, with the fields that the service writes of others.
void LogDenied(absl::string_view path, const Identity& caller, const absl::Status& status,
               absl::string_view traceparent) {
  const google::protobuf::MethodDescriptor* const method = FindMethod(path);
  if (method == nullptr || !method->options().GetExtension(v1::method).audited()) return;
  // gRPC calls the check outside of the call's trace.
  const TraceScope scope(ParseTraceparent(traceparent).value_or(MakeTrace()));
  log::WriteAudit("", {{"role", RoleName(caller.role)},
                       {"person", caller.name},
                       {"method", method->name()},
                       {"job", ""},
                       {"result", absl::StatusCodeToString(status.code())},
                       {"reason", ReasonOf(status)}});
}

class AccessCheck : public grpc::AuthMetadataProcessor {
 public:
  AccessCheck(std::string domain, metrics::Registry* metrics)
      : domain_(std::move(domain)), registry_(metrics) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    SLUICE_CHECK_MSG(path != metadata.end(), "gRPC gave no path of a call");
    const absl::StatusOr<Identity> caller = ReadIdentity(*context, domain_);
    const absl::Status status =
        caller.ok() ? CheckRole(View(path->second), *caller) : caller.status();
    if (!status.ok()) {
      CountDenied(View(path->second), ReasonOf(status));
      const auto trace = metadata.find(kTraceHeader);
      LogDenied(View(path->second), caller.ok() ? *caller : Identity(), status,
                trace == metadata.end() ? "" : View(trace->second));
    }
    return ToGrpcStatusInText(status);
  }

 private:
  void CountDenied(absl::string_view path, const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_) {
    if (registry_ == nullptr) return;
    // A caller may send any path; only known methods become labels.
    const google::protobuf::MethodDescriptor* const method = FindMethod(path);
    const std::string name = method == nullptr ? "other" : method->name();
    MutexLock lock(&mu_);
    auto [found, added] = denied_.try_emplace({name, reason});
    if (added) {
      found->second =
          registry_->AddCounter("sluice_rpc_denied_total", "Calls refused because of their caller.",
                                {{"method", name}, {"reason", reason}});
    }
    found->second.Add();
  }

  const std::string domain_;
  metrics::Registry* const registry_;
  Mutex mu_;
  absl::flat_hash_map<std::pair<std::string, std::string>, metrics::Counter> denied_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status CheckRole(absl::string_view path, const Identity& caller) {
  const google::protobuf::MethodDescriptor* const method = FindMethod(path);
  if (method == nullptr) return absl::OkStatus();
  const v1::MethodRule& rule = method->options().GetExtension(v1::method);
  // The standard services, such as health checks, have no rules.
  if (rule.roles().empty() || MayCall(rule, caller.role)) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kPermissionDenied,
      {.reason = "WRONG_ROLE", .catalogue = "SLUICE-AUTH-0005"},
      absl::StrCat(DescribeIdentity(caller), " may not call ", method->service()->name(), ".",
                   method->name(), ", which is for: ", AllowedNames(rule)));
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeAccessCheck(std::string domain,
                                                             metrics::Registry* metrics) {
  return std::make_shared<AccessCheck>(std::move(domain), metrics);
}

std::optional<Identity> CallerOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr) return std::nullopt;
  const std::vector<grpc::string_ref> uris =
      auth->FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
  if (uris.size() != 1) return std::nullopt;
  const absl::StatusOr<std::string> domain = DomainOf(View(uris[0]));
  if (!domain.ok()) return std::nullopt;
  const absl::StatusOr<Identity> identity = ParseIdentity(View(uris[0]), *domain);
  if (!identity.ok()) return std::nullopt;
  return *identity;
}

std::string ToolId(absl::string_view tool) {
  const std::shared_ptr<const Credentials> credentials = ProcessCredentials();
  return absl::StrCat(tool, "@", credentials == nullptr ? "nobody" : credentials->identity().name);
}

absl::Status CheckSpeaksFor(const grpc::ServerContextBase& context, absl::string_view id) {
  const std::optional<Identity> caller = CallerOf(context);
  if (!caller || SpeaksFor(*caller, id)) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kPermissionDenied,
                   {.reason = "WRONG_ID",
                    .catalogue = "SLUICE-AUTH-0006",
                    .hint = "a daemon's --id is the name in its certificate"},
                   absl::StrCat("the call speaks for '", id, "', but the certificate is that of ",
                                DescribeIdentity(*caller)));
}

absl::Status CheckJobRef(const grpc::ServerContextBase& context, absl::string_view worker,
                         int64_t incarnation) {
  SLUICE_RETURN_IF_ERROR(CheckSpeaksFor(context, worker));
  const std::optional<Identity> caller = CallerOf(context);
  if (!caller || incarnation != 0 || !IsWorker(caller->role)) return absl::OkStatus();
  return Error(absl::StatusCode::kPermissionDenied, "WRONG_INCARNATION",
               absl::StrCat(DescribeIdentity(*caller),
                            " calls as incarnation 0, which is the controller's"));
}

}  // namespace sluice::rpc
