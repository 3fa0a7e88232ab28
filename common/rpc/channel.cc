#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <atomic>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/process_metrics.h"
#include "common/rpc/window.h"

namespace sluice::rpc {
namespace {

grpc::ChannelArguments MakeArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // Call() retries, as the contracts allow.
  // Do not use a proxy that the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Find a dead peer during a call: ping after 30 s, wait 10 s for the answer.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // 0: pings are not limited while no data is sent.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Find a peer within a second after it has come back. The library's own delays grow to two
  // minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // window.h says why.
  return arguments;
}

std::atomic<metrics::Registry*> process_metrics{nullptr};

}  // namespace

void SetProcessMetrics(metrics::Registry* metrics) { process_metrics = metrics; }
metrics::Registry* ProcessMetrics() { return process_metrics; }

Channel::Channel(std::shared_ptr<grpc::Channel> channel, std::string address,
                 metrics::Registry* metrics)
    : channel_(std::move(channel)), address_(std::move(address)), metrics_(metrics) {}

absl::StatusOr<std::shared_ptr<Channel>> Connect(absl::string_view address,
                                                 absl::Span<const Role> peers,
                                                 const ConnectOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckAddress(address, options.credentials != nullptr));
  auto channel = grpc::CreateCustomChannel(std::string(address),
                                           options.credentials == nullptr
                                               ? grpc::InsecureChannelCredentials()
                                               : options.credentials->MakeChannelCredentials(peers),
                                           MakeArguments());
  metrics::Registry* const metrics =
      options.metrics == nullptr ? ProcessMetrics() : options.metrics;
  return std::make_shared<Channel>(std::move(channel), std::string(address), metrics);
}

}  // namespace sluice::rpc
