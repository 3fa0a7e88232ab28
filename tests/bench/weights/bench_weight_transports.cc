// Measures how fast a whole version comes from a trainer on the same host by each transport that
// needs one holder: calls, shared memory, and memory read over UCX (its own shared memory, and its
// emulation of RDMA over TCP). Each object is checked and decoded, and the fingerprint is compared.
// The trainer runs in a process of its own.
//
//   bench_weight_transports [--json] [--mib N] [--runs N]
// Speeds count the bytes of the model; the baseline is that by calls. The program starts itself
// again with --role.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/ucx/ucx.h"
#include "common/weights/fetcher.h"
#include "common/weights/grpc_transport.h"
#include "common/weights/publisher.h"
#include "common/weights/service.h"
#include "common/weights/shm_transport.h"
#include "common/weights/ucx_memory.h"
#include "tests/bench/report.h"
#include "tests/integration/harness/process.h"

namespace sluice::bench {
namespace {

using integration::Process;

// For the devices "lo", also in the trainer. Set while there is one thread.
const int kTcp = setenv("UCX_TLS", "tcp", /*overwrite=*/1);

const WeightCaller kCaller = {
    .job = "00112233445566778899aabbccddeeff", .worker = "rollout-0", .incarnation = 1};

struct Options {
  bool json = false;
  int64_t mib = 512;
  int runs = 5;
  std::string role, devices;  // Of the process that this one starts.
};

TensorSet MakeWeights(int64_t mib) {
  TensorSet set = *TensorSet::Create({{"w", DType::kF32, {mib << 18}}});
  SplitMix64 random(1);
  for (float& x : set.as<float>(0)) x = static_cast<float>(random.Uniform());
  return set;
}

// Publishes one version, and says where.
int RunTrainer(const Options& o) {
  rpc::CallerTable callers;
  callers.SetJob(kCaller.job, {{kCaller.worker, rpc::Role::kRollout, kCaller.incarnation}});
  WeightsServer service(&callers);
  service.OfferUcx(o.devices);
  const auto publisher = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = kCaller.job, .encoding = WeightEncoding::kFull},
      Clock::Real());
  service.SetPublisher(kCaller.job, publisher);
  grpc::Service* const services[] = {service.service()};
  const auto server = rpc::Server::Start({}, services);
  SLUICE_CHECK(server.ok());
  SLUICE_CHECK(service.ShareMemory((*server)->address()).ok());
  SLUICE_CHECK(publisher->Publish(MakeWeights(o.mib), {1, 1}, "").ok());
  std::puts((*server)->address().c_str());
  std::fflush(stdout);
  while (true) pause();
}

// Seconds to get the version, of each run but the first.
absl::StatusOr<std::vector<double>> Measure(const Options& o, const std::string& way) {
  const std::string devices(absl::StripPrefix(way, "ucx_"));
  const bool by_ucx = devices != way;
  SLUICE_ASSIGN_OR_RETURN(
      const auto trainer,
      Process::Start({.binary = "/proc/self/exe",
                      .args = {"--role", "trainer", "--mib", absl::StrCat(o.mib), "--devices",
                               by_ucx ? devices : "shm"}}));
  SLUICE_ASSIGN_OR_RETURN(const std::string address, trainer->ReadLine(integration::kLong));
  SLUICE_ASSIGN_OR_RETURN(const auto channel, rpc::Connect(address, {rpc::Role::kTrainer}));
  const TensorSet layout = *TensorSet::Create({{"w", DType::kF32, {o.mib << 18}}});
  const WeightFetcher fetcher(kCaller, layout.specs());
  SLUICE_ASSIGN_OR_RETURN(const auto versions, fetcher.List(*channel));

  UcxMemory ucx(devices);
  std::vector<double> seconds;
  for (int run = 0; run <= o.runs; ++run) {
    std::shared_ptr<Transport> transport;
    if (way == "shm") {
      SLUICE_ASSIGN_OR_RETURN(transport, ShmTransport::Connect(address, kCaller));
    } else {
      transport = std::make_shared<GrpcTransport>(channel, kCaller, by_ucx ? &ucx : nullptr);
    }
    const std::string origin(kOriginId);
    HolderHistory history;
    ObjectFetcher objects(
        {.caller = kCaller,
         .version = versions.back().version,
         .holders = {{.id = origin, .transport = std::move(transport)},
                     {.id = origin,
                      .transport = std::make_shared<GrpcTransport>(channel, kCaller)}},
         .history = &history});
    const absl::Duration begin = Clock::Real()->Monotonic();
    SLUICE_RETURN_IF_ERROR(fetcher.Fetch(&objects, versions.back(), std::nullopt).status());
    if (run > 0) seconds.push_back(absl::ToDoubleSeconds(Clock::Real()->Monotonic() - begin));
  }
  return seconds;
}

absl::Status Run(const Options& o) {
  const Report report(o.json);
  double calls = 0;
  for (const std::string way : {"grpc", "shm", "ucx_shm", "ucx_lo"}) {
    const absl::StatusOr<std::vector<double>> seconds = Measure(o, way);
    if (absl::IsUnimplemented(seconds.status())) continue;  // A build without UCX.
    SLUICE_RETURN_IF_ERROR(Annotate(seconds.status(), way));
    const double speed = static_cast<double>(o.mib) / 1024 / Median(*seconds);
    if (calls == 0) calls = speed;
    report.Add({absl::StrCat("weight_transports/", way), speed, "GiB/s", calls, o.runs});
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Options o;
  CLI::App app("Measures how fast a whole version comes by each transport.");
  app.add_flag("--json", o.json, "print one JSON object per figure");
  app.add_option("--mib", o.mib, "size of the version in MiB")->capture_default_str();
  app.add_option("--runs", o.runs, "fetches that are measured")->capture_default_str();
  app.add_option("--role", o.role)->group("");  // Not shown in the help.
  app.add_option("--devices", o.devices)->group("");
  CLI11_PARSE(app, argc, argv);

  if (!o.role.empty()) return sluice::bench::RunTrainer(o);
  const absl::Status status = sluice::bench::Run(o);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
