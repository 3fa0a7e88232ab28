#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/plugins/plugin_source.h"
#include "common/verifiers/plugin_spec.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace sluice {

// A server that scores answers as a plug-in, from the operator's plugin-servers.yaml
// (proto/sluice/policy/v1/plugin_servers.proto, which says what each value means).
struct PluginServer {
  std::string address;
  // Connects when it is first used, and again after a loss.
  std::shared_ptr<grpc::Channel> channel;
};

using PluginServers = std::map<std::string, PluginServer>;  // By name.

// Reads a file of plug-in servers and the certificates that it names.
// INVALID_ARGUMENT BAD_CONFIG: one line for each problem, with its place. An address of another
// machine without TLS is one, and so is a private key that others can read.
absl::StatusOr<PluginServers> ReadPluginServers(const std::string& path);

// The plug-in is a server that speaks plugin/v1/plugin.proto, `spec.server` of `servers`, which may
// be null and outlives this object. It runs by itself; its one instance is a stream of calls, and
// its version is what its descriptions say. `job` is for these.
// NOT_FOUND NO_PLUGIN_SERVER: there is no server of this name.
absl::StatusOr<std::unique_ptr<PluginSource>> MakePluginServer(const PluginSpec& spec,
                                                               const std::string& job,
                                                               const PluginServers* servers);

}  // namespace sluice
