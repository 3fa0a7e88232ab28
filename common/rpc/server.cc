#include "common/rpc/server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "common/rpc/keepalive.h"
#include "common/rpc/server_metrics.h"
#include "common/rpc/server_trace.h"
#include "common/rpc/status.h"
#include "common/rpc/window.h"

namespace sluice::rpc {
namespace {

constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kMaxStreams = 100;  // Of one connection, at one time.
constexpr int kMaxPingStrikes = 2;

void SetLimits(const Server::Options& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.receive_limit));
  // With SO_REUSEPORT, two daemons could listen on the same port unnoticed.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A header block above it ends its call, and no more of the block is kept. This version of gRPC
  // has no second limit below it.
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  // A client that has vanished must not keep its parked calls and streams.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The server closes connections whose client has pinged more often than this three times.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kPingAfterMs / 2);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
  // Its limit of threads is for services of the synchronous API, of which there are none.
  builder->SetResourceQuota(grpc::ResourceQuota("sluice").Resize(options.buffer_limit));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                              static_cast<int>(absl::ToInt64Milliseconds(options.connection_age)));
  builder->AddChannelArgument(
      GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
      static_cast<int>(absl::ToInt64Milliseconds(options.connection_grace)));
}

absl::Status PortInUse(const std::string& address) {
  return ErrorWith(absl::StatusCode::kAlreadyExists,
                   {.reason = "PORT_IN_USE",
                    .catalogue = "SLUICE-RPC-0001",
                    .hint = "stop what listens there, or give another port with --listen (port 0 "
                            "means any free port)"},
                   absl::StrCat("cannot listen on ", address, ": the port is in use"));
}

// Ends every call with an error.
class RefusingService : public grpc::CallbackGenericService {
 public:
  explicit RefusingService(std::function<absl::Status()> refusal) : refusal_(std::move(refusal)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    class Refused : public grpc::ServerGenericBidiReactor {
     public:
      explicit Refused(const absl::Status& why) { Finish(ToGrpcStatus(why)); }
      void OnDone() override { delete this; }
    };
    return new Refused(refusal_());
  }

 private:
  const std::function<absl::Status()> refusal_;
};

}  // namespace

struct Server::Impl {
  std::unique_ptr<RefusingService> refusing;  // Outlives the server.
  std::unique_ptr<grpc::Server> server;
  std::atomic<bool> drained{false};
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options,
                                                      absl::Span<grpc::Service* const> services) {
  SLUICE_RETURN_IF_ERROR(CheckAddress(options.address, options.credentials != nullptr));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  for (grpc::Service* service : services) builder.RegisterService(service);
  auto impl = std::make_unique<Impl>();
  if (options.refusal) {
    SLUICE_CHECK(services.empty());
    impl->refusing = std::make_unique<RefusingService>(options.refusal);
    builder.RegisterCallbackGenericService(impl->refusing.get());
  }
  // A refused call may have any path, which must not become a label.
  if (!options.refusal) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        interceptors;
    if (options.metrics != nullptr) interceptors.push_back(ServerMetrics(options.metrics));
    interceptors.push_back(ServerTrace());
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
  }

  int port = 0;
  builder.AddListeningPort(options.address,
                           options.credentials == nullptr
                               ? grpc::InsecureServerCredentials()
                               : options.credentials->MakeServerCredentials(options.metrics),
                           &port);
  impl->server = builder.BuildAndStart();
  // gRPC does not say why it could not bind; a used port is the usual reason.
  if (port == 0) return PortInUse(options.address);
  SLUICE_CHECK_MSG(impl->server != nullptr, "gRPC refuses to start the server; its log says why");

  const std::string host = options.address.substr(0, options.address.rfind(':'));
  std::unique_ptr<Server> server(new Server(std::move(impl), absl::StrCat(host, ":", port)));
  if (options.refusal) server->SetServing(false);
  return server;
}

Server::Server(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

Server::~Server() { Drain(absl::ZeroDuration()); }

void Server::SetServing(bool serving) {
  if (auto* health = impl_->server->GetHealthCheckService()) health->SetServingStatus(serving);
}

void Server::Drain(absl::Duration deadline) {
  if (impl_->drained.exchange(true)) return;
  SetServing(false);
  impl_->server->Shutdown(absl::ToChronoTime(absl::Now() + deadline));
  impl_->server->Wait();
}

std::shared_ptr<Channel> Server::InProcessChannel() {
  return std::make_shared<Channel>(impl_->server->InProcessChannel({}), address_, nullptr);
}

}  // namespace sluice::rpc
