#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {

// Counts each call that ends: sluice_rpc_server_handled_total {service, method, code}, and how long
// it took: sluice_rpc_server_duration_seconds {method}. A call whose client went away counts as
// CANCELLED. `metrics` outlives it.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ServerMetrics(
    metrics::Registry* metrics);

}  // namespace sluice::rpc
