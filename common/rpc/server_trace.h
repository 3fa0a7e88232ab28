#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace sluice::rpc {

// Gives each call the trace of its header `traceparent` (base/trace.h). A call without one, with
// several, or with a malformed one gets a fresh trace.
//
// What runs in the trace is the service's method itself, on the thread on which gRPC calls it, and
// all that it calls there: its log lines and its calls to other daemons. Other threads are not in
// it: callbacks of a reactor (OnWriteDone, OnDone, ..), later messages of a stream, a parked call
// that a timer finishes, and a thread pool, unless what hands the work over takes the trace along
// (TraceScope), as the controller's Loop and Pool do.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ServerTrace();

}  // namespace sluice::rpc
