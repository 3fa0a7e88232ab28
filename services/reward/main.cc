#include "services/reward/flags.h"
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
       .flags = sluice::reward::RewardFlags()},
      [](const sluice::daemon::Host& host)
          -> absl::StatusOr<std::unique_ptr<sluice::daemon::Program>> {
        return sluice::reward::RewardProgram::Make(host);
      });
}
