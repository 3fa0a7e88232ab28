#include "services/reward/program.h"

int main(int argc, char** argv) {
  return sluice::daemon::Main(
      argc, argv,
      {.name = "sluice-reward",
       .role = sluice::rpc::Role::kReward,
       .summary = "Scores finished answers: leases reward tasks from the queue and stores the "
                  "scores there.",
       .example = "sluice-reward --tls tls/reward-0 --controller 127.0.0.1:7400 --listen "
                  "127.0.0.1:7430 --ops "
                  "127.0.0.1:7431",
       .flags =
           {{sluice::reward::kJudgesFlag,
             "the operator's judges.yaml, with the models that jobs may ask to judge answers; "
             "default: none",
             "SLUICE_JUDGES"},
            {sluice::reward::kPluginsFlag,
             "how reward plug-ins run, the programs that jobs bring for the verifier `plugin`: "
             "sandbox runs them in sandboxes; off refuses jobs with plug-ins; unconfined runs them "
             "with the rights of this daemon, for a machine whose users may run programs on it "
             "anyway; default: sandbox",
             "SLUICE_PLUGINS"},
            {sluice::reward::kUnsafeFlag,
             "run programs of the policy WITHOUT a sandbox where none works; only for debugging, "
             "and only with --listen on loopback",
             "", sluice::daemon::About::Flag::Kind::kSwitch}}},
      [](const sluice::daemon::Host& host)
          -> absl::StatusOr<std::unique_ptr<sluice::daemon::Program>> {
        return sluice::reward::RewardProgram::Make(host);
      });
}
