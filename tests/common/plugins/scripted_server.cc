// Serves a ScriptedServer on a unix socket, in a child that is started again whenever it ends.
//   scripted_server PATH
#include "tests/common/plugins/scripted_server.h"

#include <grpcpp/server_builder.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  while (true) {
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child > 0) {
      if (waitpid(child, nullptr, 0) != child) return 1;
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sluice::ScriptedServer service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(std::string("unix:") + argv[1], grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(32 << 20);
    builder.SetMaxSendMessageSize(32 << 20);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (server == nullptr) return 1;
    server->Wait();
  }
}
