#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/plugins/plugin_source.h"
#include "sluice/plugin/v1/plugin.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace sluice {

// Has a server describe itself.
// UNAVAILABLE PLUGIN_UNREACHABLE: it does not run, or cannot be reached.
// UNAVAILABLE PLUGIN_START: it gave no description in time, or a wrong one.
absl::StatusOr<PluginDescription> DescribePluginServer(
    const std::shared_ptr<grpc::Channel>& channel, const plugin::v1::DescribeRequest& request,
    absl::Duration timeout, grpc::ClientContext* context);

// A stream of calls to a server, to be described next, which opens it. A server that ends it with
// OK goes for a reason that has nothing to do with the calls.
std::shared_ptr<PluginInstance> MakePluginStream(std::shared_ptr<grpc::Channel> channel,
                                                 plugin::v1::DescribeRequest hello);

}  // namespace sluice
