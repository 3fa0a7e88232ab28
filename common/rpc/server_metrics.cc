#include "common/rpc/server_metrics.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/rpc/status.h"

namespace sluice::rpc {
namespace {

// The metrics of one method. Handles for codes and reasons are made when they are first needed.
// Thread-safe.
class MethodMetrics {
 public:
  MethodMetrics(absl::string_view path, metrics::Registry* metrics) : registry_(metrics) {
    // A path reads "/sluice.queue.v1.QueueService/Admit".
    const std::vector<std::string> parts = absl::StrSplit(path, '/');
    service_ = parts.size() == 3 ? parts[1] : "other";
    method_ = parts.size() == 3 ? parts[2] : "other";
    duration_ =
        metrics->AddHistogram("sluice_rpc_server_duration_seconds", "Duration of handled calls.",
                              metrics::RpcSeconds(), {{"method", method_}});
  }

  void Count(int code, absl::Duration took) ABSL_LOCKS_EXCLUDED(mu_) {
    duration_.Observe(absl::ToDoubleSeconds(took));
    MutexLock lock(&mu_);
    auto found = handled_.find(code);
    if (found == handled_.end()) {
      const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
      found =
          handled_
              .emplace(code, registry_->AddCounter(
                                 "sluice_rpc_server_handled_total", "Calls that ended, by outcome.",
                                 {{"service", service_}, {"method", method_}, {"code", name}}))
              .first;
    }
    found->second.Add();
  }

  // Counts a call whose caller lacks the permission, or is not known to this server (yet).
  void CountDenied(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    auto found = denied_.find(reason);
    if (found == denied_.end()) {
      found = denied_
                  .emplace(reason, registry_->AddCounter("sluice_rpc_denied_total",
                                                         "Calls refused because of their caller.",
                                                         {{"method", method_}, {"reason", reason}}))
                  .first;
    }
    found->second.Add();
  }

 private:
  metrics::Registry* const registry_;
  std::string service_;
  std::string method_;
  metrics::Histogram duration_;
  Mutex mu_;
  std::map<int, metrics::Counter> handled_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, metrics::Counter> denied_ ABSL_GUARDED_BY(mu_);
};

// The reason why a call was refused because of its caller; empty if it ended in another way.
std::string DenialReason(const grpc::Status& status) {
  if (status.ok()) return "";
  const std::string reason = ReasonOf(FromGrpcStatus(status));
  // Most UNAVAILABLE errors have nothing to do with the caller.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE)
    return reason == "NOT_LISTED" ? reason : "";
  if (status.error_code() != grpc::StatusCode::PERMISSION_DENIED &&
      status.error_code() != grpc::StatusCode::UNAUTHENTICATED)
    return "";
  return reason.empty()
             ? absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()))
             : reason;
}

// Lives as long as one call, and counts it once: when the status is sent, or in the destructor if
// no status was sent.
class Interceptor : public grpc::experimental::Interceptor {
 public:
  explicit Interceptor(MethodMetrics* metrics) : metrics_(metrics), start_(absl::Now()) {}
  ~Interceptor() override {
    if (!counted_) metrics_->Count(grpc::StatusCode::CANCELLED, absl::Now() - start_);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS) &&
        !counted_) {
      counted_ = true;
      const grpc::Status status = methods->GetSendStatus();
      metrics_->Count(status.error_code(), absl::Now() - start_);
      if (const std::string denied = DenialReason(status); !denied.empty())
        metrics_->CountDenied(denied);
    }
    methods->Proceed();
  }

 private:
  MethodMetrics* const metrics_;
  const absl::Time start_;
  bool counted_ = false;
};

class Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(metrics::Registry* metrics) : registry_(metrics) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    MutexLock lock(&mu_);
    // The map stays small: calls to methods that no service has do not come here.
    std::unique_ptr<MethodMetrics>& metrics = methods_[info->method()];
    if (metrics == nullptr) metrics = std::make_unique<MethodMetrics>(info->method(), registry_);
    return new Interceptor(metrics.get());
  }

 private:
  metrics::Registry* const registry_;
  Mutex mu_;
  absl::flat_hash_map<std::string, std::unique_ptr<MethodMetrics>> methods_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ServerMetrics(
    metrics::Registry* metrics) {
  return std::make_unique<Factory>(metrics);
}

}  // namespace sluice::rpc
