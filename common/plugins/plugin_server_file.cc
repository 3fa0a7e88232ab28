// The operator's file of plug-in servers.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/config/bind.h"
#include "common/config/problems.h"
#include "common/config/read_file.h"
#include "common/plugins/plugin_server.h"
#include "common/plugins/protocol.h"
#include "common/rpc/address.h"
#include "common/rpc/keepalive.h"
#include "sluice/policy/v1/plugin_servers.pb.h"

namespace sluice {
namespace {

constexpr int kBadServer = 10;
constexpr size_t kMaxPem = 1 << 20;
constexpr absl::string_view kUnix = "unix:";

grpc::ChannelArguments ArgumentsOfServers() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // PluginHost repeats calls.
  // Do not use a proxy that the environment names.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Find a dead server during a call. By default a server of gRPC takes one ping in 5 minutes.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 300'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, rpc::kPingTimeoutMs);
  // Find a server soon after it has come back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);  // How long one try may take.
  arguments.SetMaxReceiveMessageSize(kMaxPluginLine);
  return arguments;
}

absl::Status CheckServerAddress(const policy::v1::PluginServer& server) {
  const std::string& address = server.address();
  if (absl::StartsWith(address, kUnix)) {
    if (absl::StartsWith(address, absl::StrCat(kUnix, "/"))) {
      if (!server.has_ca_file()) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("address is ", address,
                       ", whose certificate would name no host; leave "
                       "ca_file out"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("address is ", address, "; wanted: unix:/PATH, or HOST:PORT"));
  }
  const absl::Status status = rpc::CheckAddress(address, server.has_ca_file());
  if (ReasonOf(status) != "NOT_LOOPBACK") return status;
  return absl::InvalidArgumentError(
      absl::StrCat("address is ", address,
                   ", which is another machine, and without ca_file answers and scores would "
                   "cross the network in clear; give ca_file, or use a unix socket or loopback"));
}

absl::StatusOr<std::string> ReadPrivateKey(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  // A group may read it, because Kubernetes mounts Secrets with the group of the pod.
  if ((info.st_mode & (S_IRWXO | S_IWGRP)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("key_file ", path,
                     " can be read by every user of the host, or written by its group; chmod 600 "
                     "it, or 640"));
  }
  return ReadFile(path, kMaxPem);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsOf(
    const policy::v1::PluginServer& server) {
  if (server.has_cert_file() != server.has_key_file())
    return absl::InvalidArgumentError("cert_file and key_file belong together; give both or none");
  if (server.has_cert_file() && !server.has_ca_file()) {
    return absl::InvalidArgumentError(
        "cert_file is given without ca_file, by which the server's certificate is checked");
  }
  if (!server.has_ca_file()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  SLUICE_ASSIGN_OR_RETURN(options.pem_root_certs, ReadFile(server.ca_file(), kMaxPem));
  if (server.has_cert_file()) {
    SLUICE_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadFile(server.cert_file(), kMaxPem));
    SLUICE_ASSIGN_OR_RETURN(options.pem_private_key, ReadPrivateKey(server.key_file()));
  }
  return grpc::SslCredentials(options);
}

absl::StatusOr<PluginServer> ConnectTo(const policy::v1::PluginServer& server) {
  SLUICE_RETURN_IF_ERROR(CheckServerAddress(server));
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                          CredentialsOf(server));
  return PluginServer{
      .address = server.address(),
      .channel = grpc::CreateCustomChannel(server.address(), credentials, ArgumentsOfServers())};
}

}  // namespace

absl::StatusOr<PluginServers> ReadPluginServers(const std::string& path) {
  policy::v1::PluginServers file;
  PluginServers servers;
  const auto check = [&](const config::Binder& binder, config::Problems* problems) {
    for (int i = 0; i < file.servers_size(); ++i) {
      const policy::v1::PluginServer& server = file.servers(i);
      absl::StatusOr<PluginServer> made = ConnectTo(server);
      if (made.ok() && !servers.emplace(server.name(), *made).second) {
        made = absl::InvalidArgumentError(
            absl::StrCat("the name \"", server.name(), "\" is used twice"));
      }
      if (made.ok()) continue;
      const std::string row = absl::StrCat("servers.", i);
      problems->Add(binder.PlaceOf(row), kBadServer,
                    absl::StrCat(row, " (", server.name(), "): ", made.status().message()));
    }
  };
  SLUICE_RETURN_IF_ERROR(config::ReadOperatorFile(path, "plug-in servers file", &file, check));
  return servers;
}

}  // namespace sluice
