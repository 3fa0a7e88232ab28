#include "services/queue/program.h"

int main(int argc, char** argv) {
  return sluice::daemon::Main(
      argc, argv,
      {.name = "sluice-queue",
       .role = sluice::rpc::Role::kQueue,
       .summary = "The experience queue: admits prompts, stores what rollouts write, hands tasks "
                  "to rewards and batches to trainers.",
       .example = "sluice-queue --tls tls/queue-0 --controller 127.0.0.1:7400 --listen "
                  "127.0.0.1:7410 --ops "
                  "127.0.0.1:7411 --data-dir ./queue",
       .flags = sluice::queue::QueueProgram::Flags()},
      sluice::queue::QueueProgram::Make);
}
