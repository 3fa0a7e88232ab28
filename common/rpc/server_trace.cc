#include "common/rpc/server_trace.h"

#include <map>
#include <optional>

#include "common/base/trace.h"

namespace sluice::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

Trace TraceOf(const Metadata* metadata) {
  if (metadata == nullptr || metadata->count(kTraceHeader) != 1) return MakeTrace();
  const grpc::string_ref header = metadata->find(kTraceHeader)->second;
  const std::optional<Trace> given = ParseTraceparent({header.data(), header.size()});
  return given ? *given : MakeTrace();
}

class TraceInterceptor : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (!methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA))
      return methods->Proceed();
    // gRPC calls the service's method within Proceed() of the last interceptor.
    const TraceScope scope(TraceOf(methods->GetRecvInitialMetadata()));
    methods->Proceed();
  }
};

class TraceFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo*) override {
    return new TraceInterceptor;
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> ServerTrace() {
  return std::make_unique<TraceFactory>();
}

}  // namespace sluice::rpc
