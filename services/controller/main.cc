#include "common/base/loopback.h"
#include "services/controller/server.h"

namespace {
constexpr char kPolicyFlag[] = "--policy", kStoreFlag[] = "--store",
               kPasswordFlag[] = "--store-password-file", kCaFlag[] = "--store-ca",
               kUiFlag[] = "--ui";

// The value of --ui, or its default.
std::string UiOf(const sluice::daemon::Flags& flags) {
  const std::string hosts = flags.OwnFlag(kUiFlag);
  if (!hosts.empty()) return hosts;
  const std::string host = flags.ops.substr(0, flags.ops.rfind(':'));
  return sluice::IsLoopback(host) ? "localhost" : "none";
}
}  // namespace

int main(int argc, char** argv) {
  const sluice::daemon::About about = {
      .name = "sluice-controller",
      .role = sluice::rpc::Role::kController,
      .summary =
          "Keeps jobs and their states, knows the daemons, and decides which daemon works for "
          "which job.",
      .example =
          "sluice-controller --tls tls/controller-0 --listen 127.0.0.1:7400 --ops 127.0.0.1:7401 "
          "--data-dir ./controller",
      .flags =
          {{kStoreFlag,
            "rediss://HOST[:PORT][/DB], a Redis with TLS that keeps the jobs, or "
            "rediss+sentinel://HOST[:PORT],HOST[:PORT],../NAME[/DB], the master NAME of these "
            "Sentinels; redis://.. and redis+sentinel://.. without TLS on loopback only. Several "
            "controllers with the same store replace each other: one leads, the others stand by. "
            "Default: an SQLite file in --data-dir",
            "SLUICE_STORE"},
           {kPasswordFlag,
            "file with the password of that Redis and of its Sentinels; default: the environment "
            "variable SLUICE_STORE_PASSWORD",
            "SLUICE_STORE_PASSWORD_FILE"},
           {kCaFlag,
            "PEM file with the authorities that may have signed the certificates of that Redis and "
            "of its Sentinels; default: those of the system",
            "SLUICE_STORE_CA"},
           {kPolicyFlag,
            "the operator's policy.yaml, with the most that jobs may ask for and the quotas of "
            "submitters; default: no limits",
            "SLUICE_POLICY"},
           {kUiFlag,
            "hosts, separated by commas, by which browsers may open the web page /ui of --ops. The "
            "page needs no certificate: whoever reaches the port sees what a viewer sees. Default: "
            "localhost if --ops is on loopback, else the page is off. none: off",
            "SLUICE_UI"}},
  };
  return sluice::daemon::Main(argc, argv, about, [](const sluice::daemon::Host& host) {
    return sluice::controller::MakeController(
        {.id = host.flags->id,
         .store = {.url = host.flags->OwnFlag(kStoreFlag),
                   .password_file = host.flags->OwnFlag(kPasswordFlag),
                   .ca_file = host.flags->OwnFlag(kCaFlag)},
         .data_dir = host.flags->data_dir,
         .policy_file = host.flags->OwnFlag(kPolicyFlag),
         .ui = UiOf(*host.flags)},
        host);
  });
}
