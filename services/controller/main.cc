#include "services/controller/server.h"

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
  };
  return sluice::daemon::Main(argc, argv, about, [](const sluice::daemon::Host& host) {
    return sluice::controller::MakeController(
        {.id = host.flags->id, .data_dir = host.flags->data_dir}, host);
  });
}
