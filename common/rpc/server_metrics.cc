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

// The metrics of one method; handles are made when first needed.
class MethodMetrics {
 public:
  MethodMetrics(absl::string_view path, metrics::Registry* metrics) : registry_(metrics) {
    // "/sluice.queue.v1.QueueService/Admit"
    const std::vector<std::string> parts = absl::StrSplit(path, '/');
    service_ = parts.size() == 3 ? parts[1] : "other";
    method_ = parts.size() == 3 ? parts[2] : "other";
    duration_ =
        metrics->AddHistogram("sluice_rpc_server_duration_seconds", "Time of calls handled.",
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

  // A caller that may not, or that this server was not told of (yet).
  void CountDenied(const std::string& reason) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    auto found = denied_.find(reason);
    if (found == denied_.end()) {
      found = denied_
                  .emplace(reason, registry_->AddCounter("sluice_rpc_denied_total",
                                                         "Calls refused for who made them.",
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

// Why the caller was refused for who it is; empty: it was not.
std::string DeniedFor(const grpc::Status& status) {
  if (status.ok()) return "";
  const std::string reason = ReasonOf(FromGrpcStatus(status));
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE)
    return reason == "NOT_LISTED" ? reason : "";
  if (status.error_code() != grpc::StatusCode::PERMISSION_DENIED &&
      status.error_code() != grpc::StatusCode::UNAUTHENTICATED)
    return "";
  return reason.empty()
             ? absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()))
             : reason;
}

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
      if (const std::string denied = DeniedFor(status); !denied.empty())
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
    // The set of methods is that of the services served: a path that none serves never comes here.
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
