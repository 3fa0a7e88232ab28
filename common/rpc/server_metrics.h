#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {

// Counts every call that ends, in sluice_rpc_server_handled_total {service, method, code}, and its
// duration, in sluice_rpc_server_duration_seconds {method}. A call whose client went away counts as
// CANCELLED. Callers that are refused also count in sluice_rpc_denied_total {method, reason}.
//
// `metrics` outlives the factory that this returns.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ServerMetrics(
    metrics::Registry* metrics);

}  // namespace sluice::rpc
