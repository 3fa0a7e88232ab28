#include "services/reward/flags.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/judges/endpoint.h"

namespace sluice::reward {
namespace {

constexpr char kClientFlag[] = "--code-server", kClientKeyFlag[] = "--code-server-key",
               kClientCaFlag[] = "--code-server-ca";
constexpr char kServeFlag[] = "--serve-code", kServeKeyFlag[] = "--serve-code-key",
               kServeCertFlag[] = "--serve-code-cert",
               kServeCertKeyFlag[] = "--serve-code-cert-key";

// INVALID_ARGUMENT: `with` is given and `flag`, which it belongs to, is not.
absl::Status CheckBelongs(const daemon::Flags& flags, const char* with, const char* flag) {
  if (flags.OwnFlag(with).empty() || !flags.OwnFlag(flag).empty()) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = absl::StrCat("add ", flag)},
                   absl::StrCat(with, " is given, but no ", flag));
}

absl::StatusOr<Secret> ReadKey(const daemon::Flags& flags, const char* flag) {
  const std::string path = flags.OwnFlag(flag);
  if (path.empty()) return Secret();
  absl::StatusOr<Secret> key = ReadKeyFile(path);
  return key.ok() ? std::move(key) : Annotate(key.status(), flag);
}

}  // namespace

std::vector<daemon::About::Flag> RewardFlags() {
  return {{kJudgesFlag,
           "the operator's judges.yaml, with the models that jobs may ask to judge answers; "
           "default: none",
           "SLUICE_JUDGES"},
          {kPluginsFlag,
           "how reward plug-ins run, the programs that jobs bring for the verifier `plugin`: "
           "sandbox runs them in sandboxes; off refuses jobs with plug-ins; unconfined runs them "
           "with the rights of this daemon, for a machine whose users may run programs on it "
           "anyway; default: sandbox",
           "SLUICE_PLUGINS"},
          {kPluginServersFlag,
           "the operator's plugin-servers.yaml, with the gRPC servers that jobs may let score "
           "answers as plug-ins; default: none",
           "SLUICE_PLUGIN_SERVERS"},
          {kClientFlag,
           "URL of a server whose sandboxes run the programs of the verifier `code` (tier T2): "
           "another sluice-reward with --serve-code, or a SandboxFusion; default: programs run in "
           "sandboxes of this machine",
           "SLUICE_CODE_SERVER"},
          {kClientKeyFlag, "file of the bearer key that it is sent; default: none",
           "SLUICE_CODE_SERVER_KEY"},
          {kClientCaFlag,
           "PEM file of the authorities that its certificate is checked by; "
           "default: the system's",
           "SLUICE_CODE_SERVER_CA"},
          {kServeFlag,
           "IP:PORT at which the sandboxes of this machine run the programs of other daemons "
           "(POST /run_code); port 0 takes any free port; an address that is not loopback needs a "
           "key and TLS; without --controller the daemon does nothing else; default: not served",
           "SLUICE_SERVE_CODE"},
          {kServeKeyFlag, "file of the bearer key that they must send; default: none is needed",
           "SLUICE_SERVE_CODE_KEY"},
          {kServeCertFlag, "PEM file of the certificate chain; default: no TLS",
           "SLUICE_SERVE_CODE_CERT"},
          {kServeCertKeyFlag, "PEM file of the certificate's private key",
           "SLUICE_SERVE_CODE_CERT_KEY"},
          {kUnsafeFlag,
           "run programs of the policy WITHOUT a sandbox where none works; only for debugging, "
           "and only with --listen on loopback",
           "", daemon::About::Flag::Kind::kSwitch}};
}

absl::StatusOr<std::unique_ptr<run_code::Client>> MakeCodeClient(const daemon::Flags& flags) {
  SLUICE_RETURN_IF_ERROR(CheckBelongs(flags, kClientKeyFlag, kClientFlag));
  SLUICE_RETURN_IF_ERROR(CheckBelongs(flags, kClientCaFlag, kClientFlag));
  const std::string url = flags.OwnFlag(kClientFlag);
  if (url.empty()) return nullptr;
  SLUICE_ASSIGN_OR_RETURN(Secret key, ReadKey(flags, kClientKeyFlag));
  auto client = run_code::Client::Make(
      {.url = url, .key = std::move(key), .ca_file = flags.OwnFlag(kClientCaFlag)});
  if (!client.ok()) return Annotate(client.status(), kClientFlag);
  return client;
}

bool ServesCode(const daemon::Flags& flags) { return !flags.OwnFlag(kServeFlag).empty(); }

absl::StatusOr<run_code::HttpServer::Options> ReadCodeServerFlags(const daemon::Flags& flags) {
  for (const char* const flag : {kServeKeyFlag, kServeCertFlag, kServeCertKeyFlag})
    SLUICE_RETURN_IF_ERROR(CheckBelongs(flags, flag, kServeFlag));
  SLUICE_RETURN_IF_ERROR(CheckBelongs(flags, kServeCertFlag, kServeCertKeyFlag));
  SLUICE_RETURN_IF_ERROR(CheckBelongs(flags, kServeCertKeyFlag, kServeCertFlag));
  run_code::HttpServer::Options options{.address = flags.OwnFlag(kServeFlag),
                                        .cert = flags.OwnFlag(kServeCertFlag),
                                        .cert_key = flags.OwnFlag(kServeCertKeyFlag)};
  SLUICE_ASSIGN_OR_RETURN(options.key, ReadKey(flags, kServeKeyFlag));
  return options;
}

}  // namespace sluice::reward
