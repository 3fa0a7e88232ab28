#include "common/daemon/cores.h"
#include "common/daemon/ucx.h"
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
       .flags = {sluice::daemon::CoresFlag(),
                 {.name = "--collective-host",
                  .help = "address or host name at which the other trainer ranks of a job "
                          "reach this one, over TCP without encryption and certificates: use a "
                          "network that only trainers reach. Default: 127.0.0.1 if --listen is on "
                          "loopback, else "
                          "this daemon takes no job with several ranks"},
                 {.name = "--collective-ports",
                  .help = "ports of --collective-host, as 29500-29600, on which this rank lets "
                          "the others connect, so that a firewall can name them. A rank needs "
                          "two. Default: ports that the kernel gives"},
                 sluice::daemon::UcxFlag()}},
      sluice::trainer::TrainerProgram::Make);
}
