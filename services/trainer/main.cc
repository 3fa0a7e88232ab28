#include "services/trainer/program.h"

int main(int argc, char** argv) {
  return sluice::daemon::Main(argc, argv,
                              {.name = "sluice-trainer",
                               .role = sluice::rpc::Role::kTrainer,
                               .summary = "Trains a policy on the batches that the queue cuts, and publishes its weights.",
                               .example = "sluice-trainer --controller 127.0.0.1:7400 --listen 127.0.0.1:7440 --ops 127.0.0.1:7441"},
                              [](const sluice::daemon::Host& host) -> absl::StatusOr<std::unique_ptr<sluice::daemon::Program>> {
                                return std::make_unique<sluice::trainer::TrainerProgram>(host);
                              });
}
