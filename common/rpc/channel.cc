#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/keepalive.h"
#include "common/rpc/leader_search.h"
#include "common/rpc/process_metrics.h"
#include "common/rpc/window.h"

namespace sluice::rpc {
namespace {

grpc::ChannelArguments MakeArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // Call() retries, as the contracts allow.
  // Do not use a proxy that the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Find a dead peer during a call.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  // 0: pings are not limited while no data is sent.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Find a peer within seconds after it has come back. The library's own delays grow to two
  // minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  // In spite of its name, this is how long one try may take. TCP and TLS need three round trips. If
  // the first packet is lost, it is sent again after 1 s and 3 s.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // window.h says why.
  return arguments;
}

std::atomic<metrics::Registry*> process_metrics{nullptr};

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, absl::Span<const Role> peers,
                                           const ConnectOptions& options) {
  return grpc::CreateCustomChannel(address,
                                   options.credentials == nullptr
                                       ? grpc::InsecureChannelCredentials()
                                       : options.credentials->MakeChannelCredentials(peers),
                                   MakeArguments());
}

}  // namespace

struct Channel::Place {
  std::vector<Role> peers;
  ConnectOptions options;
  Mutex mu;
  std::string address ABSL_GUARDED_BY(mu);
  // By address. They stay until the end, because calls may be under way.
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels ABSL_GUARDED_BY(mu);
};

struct Channel::Leaders {
  Leaders(std::vector<std::string> addresses, const ConnectOptions& options)
      : count(static_cast<int>(addresses.size())), options(options), search(std::move(addresses)) {}

  const int count;
  const ConnectOptions options;
  Mutex mu;
  LeaderSearch search ABSL_GUARDED_BY(mu);
  // By address. They stay until the end, because calls may be under way.
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels ABSL_GUARDED_BY(mu);
};

void SetProcessMetrics(metrics::Registry* metrics) { process_metrics = metrics; }
metrics::Registry* ProcessMetrics() { return process_metrics; }

Channel::Channel(std::shared_ptr<grpc::Channel> channel, std::string address,
                 metrics::Registry* metrics)
    : metrics_(metrics == nullptr ? ProcessMetrics() : metrics), place_(std::make_shared<Place>()) {
  MutexLock lock(&place_->mu);
  if (channel != nullptr) place_->channels[address] = std::move(channel);
  place_->address = std::move(address);
}

absl::Status Channel::MoveTo(absl::string_view address) {
  SLUICE_CHECK(place_ != nullptr);
  SLUICE_RETURN_IF_ERROR(CheckAddress(address, place_->options.credentials != nullptr));
  MutexLock lock(&place_->mu);
  place_->address = std::string(address);
  return absl::OkStatus();
}

Channel::Peer Channel::peer() const {
  if (place_ != nullptr) {
    MutexLock lock(&place_->mu);
    const std::string& address = place_->address;
    std::shared_ptr<grpc::Channel>& channel = place_->channels[address];
    if (channel == nullptr) channel = MakeChannel(address, place_->peers, place_->options);
    return {channel.get(), address, address, nullptr};
  }
  MutexLock lock(&leaders_->mu);
  const std::string& address = leaders_->search.current();
  std::shared_ptr<grpc::Channel>& channel = leaders_->channels[address];
  if (channel == nullptr) channel = MakeChannel(address, {Role::kController}, leaders_->options);
  const std::string& by = leaders_->search.named_by();
  return {channel.get(), address,
          by.empty() ? address : absl::StrCat(address, " (the leader, says ", by, ")"), leaders_};
}

int Channel::peers() const { return leaders_ == nullptr ? 1 : leaders_->count; }

bool Channel::Peer::MoveOn(const absl::Status& why) const {
  if (leaders == nullptr) return false;
  MutexLock lock(&leaders->mu);
  return leaders->search.OnFailed(address, why);
}

absl::StatusOr<std::shared_ptr<Channel>> Connect(absl::string_view address,
                                                 absl::Span<const Role> peers,
                                                 const ConnectOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckAddress(address, options.credentials != nullptr));
  auto channel = std::make_shared<Channel>(nullptr, std::string(address), options.metrics);
  channel->place_->peers.assign(peers.begin(), peers.end());
  channel->place_->options = options;
  return channel;
}

absl::StatusOr<std::shared_ptr<Channel>> ConnectToLeader(absl::string_view addresses,
                                                         const ConnectOptions& options) {
  const std::vector<std::string> list = SplitAddresses(addresses);
  // An empty list is no address either.
  if (list.empty()) return CheckAddress(addresses, options.credentials != nullptr);
  for (const std::string& address : list)
    SLUICE_RETURN_IF_ERROR(CheckAddress(address, options.credentials != nullptr));
  auto channel = std::make_shared<Channel>(nullptr, std::string(addresses), options.metrics);
  channel->place_ = nullptr;
  channel->leaders_ = std::make_shared<Channel::Leaders>(list, options);
  return channel;
}

}  // namespace sluice::rpc
