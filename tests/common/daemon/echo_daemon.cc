// The smallest daemon, which only answers Stats. main_test.cc starts it as a process.
#include <cstdio>

#include "common/base/status.h"
#include "common/daemon/daemon.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::daemon {
namespace {

class Echo : public queue::v1::QueueService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const queue::v1::StatsRequest*,
                                  queue::v1::StatsResponse* response) override {
    response->set_version(7);
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

class EchoProgram : public Program {
 public:
  std::vector<grpc::Service*> services() override { return {&echo_}; }
  absl::Status Start(const std::string&, const std::string&) override { return absl::OkStatus(); }
  absl::Status CheckReady() override { return absl::UnavailableError("no job"); }
  void Drain() override {
    std::printf("drained\n");
    std::fflush(stdout);
  }

 private:
  Echo echo_;
};

absl::StatusOr<std::unique_ptr<Program>> Make(const Host& host) {
  if (host.flags->id == "stops-itself") {
    host.stop(ErrorWith(absl::StatusCode::kFailedPrecondition,
                        {.catalogue = "SLUICE-CTL-0002", .hint = "upgrade it"},
                        "the controller speaks protocols 2 to 3"));
  }
  return std::make_unique<EchoProgram>();
}

}  // namespace
}  // namespace sluice::daemon

int main(int argc, char** argv) {
  return sluice::daemon::Main(
      argc, argv,
      {"sluice-echo", sluice::rpc::Role::kQueue, "Answers.", "sluice-echo --listen 127.0.0.1:7000"},
      sluice::daemon::Make);
}
