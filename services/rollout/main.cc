#include "services/rollout/program.h"

int main(int argc, char** argv) {
  return sluice::daemon::Main(
      argc, argv,
      {.name = "sluice-rollout",
       .role = sluice::rpc::Role::kRollout,
       .summary =
           "Samples answers under the newest verified weights and streams them to the queue.",
       .example = "sluice-rollout --tls tls/rollout-0 --controller 127.0.0.1:7400 --listen "
                  "127.0.0.1:7420 --ops "
                  "127.0.0.1:7421",
       .flags = sluice::rollout::RolloutFlags()},
      sluice::rollout::RolloutProgram::Make);
}
