#include <unistd.h>

#include <cstdlib>

#include "services/trainer/program.h"

int main(int argc, char** argv) {
  // OpenMP reads this before main() runs. Its threads would else spin between two operations, and take the cores from the
  // rollouts beside: a step of the example took 20 times as long.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    ::setenv("OMP_WAIT_POLICY", "passive", 1);
    char self[4096];  // By its path, not as /proc/self/exe: the process keeps its name.
    const ssize_t length = ::readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length > 0) {
      self[length] = '\0';
      ::execv(self, argv);  // Where that fails, it is slower and no more.
    }
  }
  return sluice::daemon::Main(argc, argv,
                              {.name = "sluice-trainer",
                               .role = sluice::rpc::Role::kTrainer,
                               .summary = "Trains a policy on the batches that the queue cuts, and publishes its weights.",
                               .example = "sluice-trainer --controller 127.0.0.1:7400 --listen 127.0.0.1:7440 --ops 127.0.0.1:7441"},
                              [](const sluice::daemon::Host& host) -> absl::StatusOr<std::unique_ptr<sluice::daemon::Program>> {
                                return std::make_unique<sluice::trainer::TrainerProgram>(host);
                              });
}
