#include "services/trainer/program.h"

int main(int argc, char** argv) {
  return sluice::daemon::Main(
      argc, argv,
      {.name = "sluice-trainer",
       .role = sluice::rpc::Role::kTrainer,
       .summary = "Trains a policy on the batches that the queue makes, and publishes its weights.",
       .example = "sluice-trainer --tls tls/trainer-0 --controller 127.0.0.1:7400 --listen "
                  "127.0.0.1:7440 --ops "
                  "127.0.0.1:7441",
       .flags = sluice::trainer::TrainerFlags()},
      sluice::trainer::TrainerProgram::Make);
}
