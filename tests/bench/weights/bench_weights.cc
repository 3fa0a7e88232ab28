// Measures how long a published version takes to reach all rollouts. Each process has a network
// namespace of its own, whose link carries a limited rate each way (tc tbf), and a certificate. The
// versions are sent whole, so that each has the same size.
//
//   bench_weights [--json] [--receivers N] [--mib N] [--mbit N] [--runs N]
// Rows: one receiver, a star, a chain, broadcasts over c10d (without encryption), and one that
// joins when the others have the version. It needs root and iproute2. The program starts itself
// again with --role.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/collective/c10d_collective.h"
#include "common/collective/rendezvous_server.h"
#include "common/rpc/caller.h"
#include "common/rpc/server.h"
#include "common/weights/broadcast_server.h"
#include "common/weights/publisher.h"
#include "common/weights/relay.h"
#include "common/weights/service.h"
#include "common/weights/subscriber.h"
#include "tests/bench/report.h"
#include "tests/fault/network/hosts.h"
#include "tests/integration/harness/process.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::bench {
namespace {

using integration::Process;

constexpr char kJob[] = "00112233445566778899aabbccddeeff";
constexpr absl::Duration kLongest = absl::Minutes(5);

struct Options {
  bool json = false;
  int receivers = 8, runs = 3;
  int64_t mib = 25;
  double mbit = 100;
  // Of the processes that this one starts.
  std::string role, id, tls, listen, trainer, members, fan_out;
};

TensorSet Weights(int64_t mib, uint64_t seed) {
  TensorSet set = *TensorSet::Create({{"w", DType::kF32, {mib << 18}}});
  SplitMix64 random(seed);
  for (float& x : set.as<float>(0)) x = static_cast<float>(random.Uniform());
  return set;
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

// Prints a line for the process that started this one: words, and the time.
void Say(const std::string& words) {
  std::printf("%s %.6f\n", words.c_str(), absl::ToDoubleSeconds(Clock::Real()->Monotonic()));
  std::fflush(stdout);
}

std::string RolloutId(int i) { return absl::StrCat("rollout-", i); }

// Ends with the process that started it.
[[noreturn]] void SleepForEver() {
  while (true) Clock::Real()->Sleep(absl::Hours(1));
}

// The trainer: publishes a version each time that all receivers have the one before.
int RunTrainer(const Options& o) {
  rpc::CallerTable callers;
  std::vector<rpc::CallerTable::Worker> workers;
  for (int i = 0; i <= o.receivers; ++i)
    workers.push_back({.id = RolloutId(i), .role = rpc::Role::kRollout, .incarnation = 1});
  callers.SetJob(kJob, workers);
  WeightsServer service(&callers);
  const auto publisher = std::make_shared<WeightPublisher>(
      WeightPublisher::Options{.job = kJob, .encoding = WeightEncoding::kFull}, Clock::Real());
  publisher->SetReceivers(o.fan_out == "chain" ? o.receivers : 0);
  service.SetPublisher(kJob, publisher);
  RendezvousServer rendezvous(&callers);
  service.SetBroadcasts(std::make_unique<BroadcastServer>(
      BroadcastServer::Options{.join = JoinC10d, .host = HostOf(o.listen)}, &rendezvous));
  grpc::Service* const services[] = {service.service(), rendezvous.service()};
  const auto server = rpc::Server::Start({.address = o.listen}, services);
  SLUICE_CHECK(server.ok());
  Say(absl::StrCat("listening ", (*server)->address()));

  for (int run = 0; run <= o.runs; ++run) {
    const TensorSet weights = Weights(o.mib, static_cast<uint64_t>(run));
    const PublishedVersion made = *publisher->Publish(weights, {1, run}, "");
    Say(absl::StrCat("published ", run));
    const auto all_active = [&] {
      const std::vector<ReplicaState> replicas = publisher->replicas();
      return std::count_if(replicas.begin(), replicas.end(), [&](const ReplicaState& replica) {
               return replica.version == made.version && replica.phase == "ACTIVE";
             }) >= o.receivers;
    };
    while (!all_active()) Clock::Real()->Sleep(absl::Milliseconds(20));
  }
  Say("done");
  SleepForEver();
}

int RunReceiver(const Options& o) {
  std::vector<RelayMember> members;
  rpc::CallerTable callers;
  std::vector<rpc::CallerTable::Worker> workers;
  for (const absl::string_view member : absl::StrSplit(o.members, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(member, '=');
    members.push_back({parts[0], parts[1]});
    workers.push_back({.id = parts[0], .role = rpc::Role::kRollout, .incarnation = 1});
  }
  callers.SetJob(kJob, workers);
  WeightsServer service(&callers);
  const auto relay = std::make_shared<WeightRelay>();
  service.SetRelay(kJob, relay, nullptr);
  grpc::Service* const services[] = {service.service()};
  const auto server = rpc::Server::Start({.address = o.listen}, services);
  SLUICE_CHECK(server.ok());

  const bool holds_first = o.id != RolloutId(o.receivers);  // The last one joins late.
  const TensorSet held = Weights(o.mib, holds_first ? 0 : 1000);
  std::optional<BroadcastOptions> broadcast;
  if (o.fan_out == "c10d") broadcast = {.join = JoinC10d, .host = HostOf(o.listen)};
  std::unique_ptr<WeightSubscriber> subscriber;
  const auto on_staged = [&](StagedWeights staged) {
    Say(absl::StrCat("staged ", staged.version.number));
    subscriber->OnActivated(staged.version, staged.state, absl::ZeroDuration());
  };
  subscriber = std::make_unique<WeightSubscriber>(
      WeightSubscriber::Options{.job = kJob,
                                .worker = o.id,
                                .incarnation = 1,
                                .fan_out = o.fan_out == "chain" ? FanOut::kChain : FanOut::kStar,
                                .broadcast = broadcast,
                                .relay = relay,
                                .on_download_ended =
                                    [](const ObjectFetcher::Stats& stats) {
                                      if (stats.last_fault.empty()) return;
                                      std::fprintf(stderr, "%s\n", stats.last_fault.c_str());
                                    }},
      held.specs(), FingerprintOf(held), on_staged);
  Say("joined");
  subscriber->SetMembers(members);
  subscriber->SetSource(o.trainer);
  SleepForEver();
}

// The network and the certificates of all runs.
class Network {
 public:
  static absl::StatusOr<Network> Make(const Options& o) {
    std::vector<std::string> names = {"trainer"};
    for (int i = 0; i <= o.receivers; ++i) names.push_back(RolloutId(i));
    names.push_back("spare");  // The last one hangs on a cable that this process carries.
    Network network;
    SLUICE_ASSIGN_OR_RETURN(network.hosts_, fault::Hosts::Make(names));
    names.pop_back();
    network.dir_ = absl::StrCat(std::filesystem::temp_directory_path().string(),
                                "/sluice-bench-weights-", getpid());
    std::filesystem::create_directories(network.dir_);

    std::vector<cli::DaemonSpec> daemons;
    for (const std::string& name : names) {
      daemons.push_back({.name = name, .role = name == "trainer" ? "trainer" : "rollout"});
      const std::string rate =
          absl::StrCat("root tbf rate ", o.mbit, "mbit burst 64kb latency 100ms");
      SLUICE_RETURN_IF_ERROR(
          network.RunTc(absl::StrCat("-n ", name, " qdisc add dev eth0 ", rate)));
      SLUICE_RETURN_IF_ERROR(network.RunTc(absl::StrCat("qdisc add dev to-", name, " ", rate)));
    }
    SLUICE_RETURN_IF_ERROR(cli::IssueFleetCertificates(network.dir_, daemons));
    return network;
  }
  ~Network() {
    if (!dir_.empty()) std::filesystem::remove_all(dir_);
  }
  Network(Network&& other) noexcept
      : hosts_(std::move(other.hosts_)), dir_(std::exchange(other.dir_, "")) {}

  std::string address(const std::string& name) const {
    return absl::StrCat(hosts_->address(name), ":7000");
  }
  absl::StatusOr<std::unique_ptr<Process>> Start(const std::string& name,
                                                 std::vector<std::string> args) const {
    args.insert(args.end(),
                {"--id", name, "--tls", cli::FleetTlsDir(dir_, name), "--listen", address(name)});
    return Process::Start({.binary = "/proc/self/exe",
                           .args = std::move(args),
                           .log = absl::StrCat(dir_, "/", name, ".log"),
                           .network = fault::Hosts::NetworkPath(name)});
  }

 private:
  Network() = default;
  absl::Status RunTc(const std::string& command) const {
    const auto done = integration::RunToEnd({.binary = "/sbin/tc",
                                             .args = absl::StrSplit(command, ' '),
                                             .log = absl::StrCat(dir_, "/tc.log")},
                                            absl::Seconds(10));
    if (!done.ok()) return done.status();
    if (done->exit == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("`tc ", command, "` failed: ", done->err));
  }

  std::unique_ptr<fault::Hosts> hosts_;
  std::string dir_;
};

// The time of a line "WORD NUMBER TIME" of a process, or of one that ends the search.
absl::StatusOr<double> AwaitLine(Process& process, const std::string& begin) {
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const std::string line, process.ReadLine(kLongest));
    if (line.compare(0, begin.size(), begin) != 0) continue;
    double time = 0;
    SLUICE_CHECK(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &time));
    return time;
  }
}

struct Times {
  std::vector<double> all;  // From the announcement until the last receiver has the version.
  double late = 0;          // Of one that joins at the end.
};

absl::StatusOr<Times> Measure(const Network& network, const Options& o, int receivers,
                              const std::string& fan_out) {
  const std::vector<std::string> common = {
      "--receivers", absl::StrCat(receivers), "--mib",     absl::StrCat(o.mib),
      "--runs",      absl::StrCat(o.runs),    "--fan-out", fan_out};
  std::vector<std::string> args = common;
  args.insert(args.end(), {"--role", "trainer"});
  SLUICE_ASSIGN_OR_RETURN(const auto trainer, network.Start("trainer", args));
  SLUICE_RETURN_IF_ERROR(AwaitLine(*trainer, "listening").status());

  const auto start = [&](int i, int members) {
    std::vector<std::string> list;
    for (int m = 0; m < members; ++m)
      list.push_back(absl::StrCat(RolloutId(m), "=", network.address(RolloutId(m))));
    std::vector<std::string> its = common;
    its.insert(its.end(), {"--role", "receiver", "--trainer", network.address("trainer"),
                           "--members", absl::StrJoin(list, ",")});
    return network.Start(RolloutId(i), its);
  };
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < receivers; ++i) {
    SLUICE_ASSIGN_OR_RETURN(auto process, start(i, receivers));
    processes.push_back(std::move(process));
  }

  Times times;
  for (int run = 1; run <= o.runs; ++run) {
    SLUICE_ASSIGN_OR_RETURN(const double published,
                            AwaitLine(*trainer, absl::StrCat("published ", run, " ")));
    double last = 0;
    for (const auto& process : processes) {
      SLUICE_ASSIGN_OR_RETURN(const double staged,
                              AwaitLine(*process, absl::StrCat("staged ", run, " ")));
      last = std::max(last, staged - published);
    }
    times.all.push_back(last);
  }
  SLUICE_RETURN_IF_ERROR(AwaitLine(*trainer, "done").status());
  SLUICE_ASSIGN_OR_RETURN(const auto late, start(receivers, receivers + 1));
  SLUICE_ASSIGN_OR_RETURN(const double joined, AwaitLine(*late, "joined"));
  SLUICE_ASSIGN_OR_RETURN(const double staged,
                          AwaitLine(*late, absl::StrCat("staged ", o.runs, " ")));
  times.late = staged - joined;
  return times;
}

absl::Status Run(const Options& o) {
  SLUICE_ASSIGN_OR_RETURN(const Network network, Network::Make(o));
  const Report report(o.json);
  const double wire = static_cast<double>(o.mib << 20) * 8 / (o.mbit * 1e6);
  SLUICE_ASSIGN_OR_RETURN(const Times one, Measure(network, o, 1, "star"));
  report.Add({"weights/one_receiver", Median(one.all), "s", wire, o.runs});
  SLUICE_ASSIGN_OR_RETURN(const Times star, Measure(network, o, o.receivers, "star"));
  report.Add({absl::StrCat("weights/star_of_", o.receivers), Median(star.all), "s", Median(one.all),
              o.runs});
  SLUICE_ASSIGN_OR_RETURN(const Times chain, Measure(network, o, o.receivers, "chain"));
  const std::string name = absl::StrCat("weights/chain_of_", o.receivers);
  report.Add({absl::StrCat(name, "_to_one"), Median(chain.all), "s", Median(one.all), o.runs});
  report.Add({absl::StrCat(name, "_to_star"), Median(chain.all), "s", Median(star.all), o.runs});
  SLUICE_ASSIGN_OR_RETURN(const Times c10d, Measure(network, o, o.receivers, "c10d"));
  const std::string broadcast = absl::StrCat("weights/c10d_of_", o.receivers);
  report.Add(
      {absl::StrCat(broadcast, "_to_chain"), Median(c10d.all), "s", Median(chain.all), o.runs});
  report.Add(
      {absl::StrCat(broadcast, "_to_star"), Median(c10d.all), "s", Median(star.all), o.runs});
  report.Add({"weights/late_joiner", chain.late, "s", Median(one.all), 1});
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Options o;
  CLI::App app("Measures how long a published version takes to reach all rollouts.");
  app.add_flag("--json", o.json, "print one JSON object per figure");
  app.add_option("--receivers", o.receivers, "rollouts of star and chain")->capture_default_str();
  app.add_option("--mib", o.mib, "size of a version in MiB")->capture_default_str();
  app.add_option("--mbit", o.mbit, "rate of each link, in Mbit/s")->capture_default_str();
  app.add_option("--runs", o.runs, "versions that are measured")->capture_default_str();
  for (const auto& [name, value] : std::map<std::string, std::string*>{{"--role", &o.role},
                                                                       {"--id", &o.id},
                                                                       {"--tls", &o.tls},
                                                                       {"--listen", &o.listen},
                                                                       {"--trainer", &o.trainer},
                                                                       {"--members", &o.members},
                                                                       {"--fan-out", &o.fan_out}})
    app.add_option(name, *value)->group("");  // Not shown in the help.
  CLI11_PARSE(app, argc, argv);

  if (!o.role.empty()) {
    const auto credentials = sluice::rpc::Credentials::Load(o.tls);
    SLUICE_CHECK(credentials.ok());
    sluice::rpc::SetProcessCredentials(*credentials);
    return o.role == "trainer" ? sluice::bench::RunTrainer(o) : sluice::bench::RunReceiver(o);
  }
  const absl::Status status = sluice::bench::Run(o);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
