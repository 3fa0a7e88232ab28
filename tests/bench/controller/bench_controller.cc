// Measures a controller that has many jobs and daemons: its start, the calls that people wait for,
// the web page, and what heartbeats cost. The baseline of each figure is the same with 10 jobs and
// 10 daemons.
//   bench_controller [--json] [--jobs 10000] [--live 100] [--daemons 1000] [--runs 20]
//
// Beside the finished jobs, which are written into the store, there are live ones, which wait for
// daemons. The daemons are simulated by processes of this program, and have no work.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/child.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/config/job_file.h"
#include "common/meta/store.h"
#include "common/rpc/client.h"
#include "common/rpc/stream.h"
#include "services/controller/core/codec.h"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/registry/v1/registry.pb.h"
#include "tests/bench/report.h"
#include "tests/common/daemon/http.h"

namespace sluice::bench {
namespace {

using controller::AssignRecord;
using controller::JobKey;
using controller::JobRecord;

constexpr absl::Duration kBeat = absl::Seconds(2);  // Between two heartbeats of a daemon.
constexpr int kEvents = 8;                          // Of each finished job.
constexpr int kSteps = 20;                          // Step reports of each finished job.

struct Sizes {
  int jobs = 10000, live = 100, daemons = 1000, runs = 20;
};

std::string ProgramPath(const char* name) { return absl::StrCat(SLUICE_BIN_DIR, "/", name); }

// The example job under another name.
absl::StatusOr<job::v1::JobSpec> ReadSpec(const std::string& name) {
  const JobFile file =
      ReadJobFile(SLUICE_SOURCE_DIR "/configs/examples/digits.yaml", {.sets = {"name=" + name}});
  SLUICE_RETURN_IF_ERROR(ProblemStatus(file.problems));
  return *file.spec;
}

// What the store has of a job that succeeded an hour ago.
void AddFinishedJob(int64_t order, const std::string& spec, std::vector<meta::Op>* ops) {
  JobRecord record;
  record.id = absl::StrFormat("%032x", order + 1);
  record.name = absl::StrCat("finished-", order);
  record.hash = std::string(64, 'a');
  record.owner = absl::StrCat("submitter-", order % 7);
  record.order = order;
  record.created = absl::Now() - absl::Hours(1);
  record.running_since = record.created + absl::Seconds(3);
  record.ended = record.created + absl::Minutes(20);
  record.state = record.target = controller::JobState::kSucceeded;
  record.stage = controller::Stage::kOver;
  record.step = 1500;
  record.last_event = kEvents;
  record.ledger = {.accepted = 192000, .durable = 192000};
  record.checkpoint = absl::StrCat("/checkpoints/", record.name, "/step-1500");
  AssignRecord assign;
  assign.trainer_incarnation = 1;
  assign.opened = true;
  assign.queue = "queue-0";

  controller::Result result;
  result.job = record.id;
  result.state = "SUCCEEDED";
  result.steps = record.step;
  result.seconds = 1200;
  result.reward_first = 0.1;
  result.reward_last = 0.9;
  result.tokens_trained = 470899;
  for (int64_t i = 0; i < 60; ++i) {
    controller::CurvePoint point{.first_step = 25 * i, .last_step = 25 * i + 24};
    point.reward = static_cast<double>(i) / 60;
    result.curve.push_back(point);
  }

  const auto put = [&](std::string key, std::string value) {
    ops->push_back({std::move(key), std::move(value)});
  };
  put(controller::NameKey(record.name), record.id);
  put(JobKey(record.id, "spec"), spec);
  put(JobKey(record.id, "hash"), record.hash);
  put(JobKey(record.id, "status"), controller::Encode(record));
  put(JobKey(record.id, "result"), controller::Encode(result));
  put(controller::AssignKey(record.id), controller::Encode(assign));
  for (uint64_t seq = 1; seq <= kEvents; ++seq) {
    put(controller::EventKey(record.id, seq),
        controller::Encode(controller::Event{.seq = seq,
                                             .at = record.ended,
                                             .role = "controller",
                                             .code = "state",
                                             .message = "RUNNING -> FINISHING"}));
  }
  for (int64_t k = 0; k < kSteps; ++k) {
    controller::StepReport step{.k = k, .at = record.created};
    for (const char* name : {"reward_mean", "reward_std", "entropy", "tokens", "loss", "grad_norm",
                             "lr", "staleness_max", "seconds_step", "seconds_wait_data"})
      step.values[name] = 0.123456 * static_cast<double>(k + 1);
    put(controller::StepKey(record.id, k), controller::Encode(step));
  }
}

absl::Status FillStore(const std::string& dir, int jobs) {
  SLUICE_ASSIGN_OR_RETURN(const job::v1::JobSpec spec, ReadSpec("finished"));
  const std::string text = spec.SerializeAsString();
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<meta::Store> store,
                          meta::Open({.url = absl::StrCat("sqlite:", dir, "/meta.db")}));
  std::vector<meta::Op> ops;
  for (int64_t order = 0; order < jobs; ++order) {
    AddFinishedJob(order, text, &ops);
    if (order % 250 != 249 && order + 1 != jobs) continue;
    SLUICE_RETURN_IF_ERROR(store->Txn({}, std::move(ops)).status());
    ops.clear();
  }
  return absl::OkStatus();
}

// A controller process on a folder of its own.
class ControllerProcess {
 public:
  ~ControllerProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  absl::Status Start(const std::string& dir) {
    const absl::Time began = absl::Now();
    SLUICE_ASSIGN_OR_RETURN(
        const Child child,
        StartChild({.argv = {ProgramPath("sluice-controller"), "--insecure-loopback", "--data-dir",
                             dir, "--listen", "127.0.0.1:0", "--ops", "127.0.0.1:0"},
                    .stderr_path = dir + "/log"}));
    pid_ = child.pid;
    std::string line;
    for (char c; read(child.stdout_fd, &c, 1) == 1 && c != '\n';) line += c;
    close(child.stdout_fd);
    start_seconds_ = absl::ToDoubleSeconds(absl::Now() - began);
    const nlohmann::json report = nlohmann::json::parse(line, nullptr, false);
    if (!report.is_object())
      return absl::InternalError(absl::StrCat("the controller did not start; see ", dir, "/log"));
    address_ = report["listening"];
    ops_ = report["ops"];
    SLUICE_ASSIGN_OR_RETURN(channel_, rpc::Connect(address_, {rpc::Role::kController}));
    return absl::OkStatus();
  }

  double start_seconds() const { return start_seconds_; }
  const std::string& address() const { return address_; }
  const std::string& ops() const { return ops_; }
  const rpc::Channel& channel() const { return *channel_; }

  double ResidentMebibytes() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
    for (std::string line; std::getline(file, line);) {
      if (line.rfind("VmRSS:", 0) == 0) return std::atof(line.c_str() + 6) / 1024;
    }
    return 0;
  }
  // CPU time so far.
  double CpuSeconds() const {
    const std::string text = ReadFile(absl::StrCat("/proc/", pid_, "/stat")).value_or("");
    const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 1), ' ');
    if (fields.size() < 14) return 0;
    return (std::atof(fields[12].c_str()) + std::atof(fields[13].c_str())) /
           static_cast<double>(sysconf(_SC_CLK_TCK));
  }

 private:
  pid_t pid_ = -1;
  double start_seconds_ = 0;
  std::string address_, ops_;
  std::shared_ptr<rpc::Channel> channel_;
};

// Median of `runs` times of `work`, in milliseconds.
template <typename Work>
absl::StatusOr<double> MedianMs(int runs, const Work& work) {
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const absl::Time began = absl::Now();
    SLUICE_RETURN_IF_ERROR(work(i));
    times.push_back(absl::ToDoubleMilliseconds(absl::Now() - began));
  }
  return Median(std::move(times));
}

// Runs a command of the CLI to its end, as a person does.
absl::Status RunCommand(const ControllerProcess& controller, const std::string& dir,
                        std::vector<std::string> args) {
  std::vector<std::string> argv = {ProgramPath("sluice")};
  argv.insert(argv.end(), args.begin(), args.end());
  argv.insert(argv.end(), {"--server", controller.address()});
  SLUICE_ASSIGN_OR_RETURN(const Child child,
                          StartChild({.argv = argv,
                                      .stderr_path = dir + "/cli",
                                      .env = {{"XDG_STATE_HOME", dir}, {"SLUICE_TLS", ""}}}));
  char bytes[65536];
  while (read(child.stdout_fd, bytes, sizeof bytes) > 0) {
  }
  close(child.stdout_fd);
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("sluice ", args[0], " ", args[1], ": ",
                                          WaitStatusText(status), "; see ", dir, "/cli"));
}

// A server takes 100 streams of one process, and each daemon needs one.
constexpr int kDaemonsOfProcess = 90;

struct SimulatedDaemon {
  registry::v1::HeartbeatRequest beat;
  std::unique_ptr<rpc::ClientStream> stream;

  absl::Status Beat() {
    registry::v1::HeartbeatResponse answer;
    if (stream->Write(beat) && stream->Read(&answer)) return absl::OkStatus();
    stream->TryCancel();
    return Annotate(stream->Finish(), beat.daemon());
  }
};

absl::StatusOr<SimulatedDaemon> RegisterDaemon(const rpc::Channel& channel, int number) {
  registry::v1::RegisterRequest request;
  request.set_daemon(absl::StrCat("rollout-", number));
  request.set_role(rpc::v1::ROLE_ROLLOUT);
  request.set_boot(RandomId16());
  request.set_build("bench");
  request.set_protocol_min(1);
  request.set_protocol_max(1);
  (*request.mutable_addresses())["grpc"] = "127.0.0.1:1";
  registry::v1::RegisterResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response, {.give_up = absl::Minutes(1)}));

  SimulatedDaemon daemon;
  daemon.beat.set_daemon(request.daemon());
  daemon.beat.set_incarnation(response.incarnation());
  (*daemon.beat.mutable_load())["busy"] = 0.5;
  daemon.stream =
      std::make_unique<rpc::ClientStream>(channel, *registry::v1::HeartbeatRequest::descriptor());
  return daemon;
}

// Is rollouts number `first` and up, each of which sends a heartbeat every 2 s. Prints a line when
// all have sent their first one. Returns only after an error.
absl::Status SimulateDaemons(const std::string& controller, int first, int count) {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(controller, {rpc::Role::kController}));
  std::vector<SimulatedDaemon> daemons;
  for (int i = 0; i < count; ++i) {
    SLUICE_ASSIGN_OR_RETURN(SimulatedDaemon daemon, RegisterDaemon(*channel, first + i));
    SLUICE_RETURN_IF_ERROR(daemon.Beat());
    daemons.push_back(std::move(daemon));
  }
  std::printf("ready\n");
  std::fflush(stdout);
  for (absl::Time next = absl::Now();; next += kBeat) {
    absl::SleepFor(next - absl::Now());
    for (SimulatedDaemon& daemon : daemons) SLUICE_RETURN_IF_ERROR(daemon.Beat());
  }
}

// The processes that simulate the daemons. They end with this object.
class Fleet {
 public:
  ~Fleet() {
    for (const Child& child : children_) {
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
      close(child.stdout_fd);
    }
  }

  // Waits until all daemons have sent a heartbeat.
  absl::Status Start(const std::string& controller, int daemons, const std::string& dir) {
    for (int first = 0; first < daemons; first += kDaemonsOfProcess) {
      SLUICE_ASSIGN_OR_RETURN(
          const Child child,
          StartChild(
              {.argv = {"/proc/self/exe", "--simulate", controller, "--first", absl::StrCat(first),
                        "--daemons", absl::StrCat(std::min(kDaemonsOfProcess, daemons - first))},
               .stderr_path = dir + "/daemons"}));
      children_.push_back(child);
    }
    for (const Child& child : children_) {
      char c;
      if (read(child.stdout_fd, &c, 1) != 1)
        return absl::UnavailableError(
            absl::StrCat("the simulated daemons ended; see ", dir, "/daemons"));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<Child> children_;
};

// All figures of one controller, by name. Those whose name ends in _s are in seconds, _ms in
// milliseconds, _mib in MiB. All but the first two are measured while the daemons send heartbeats.
absl::StatusOr<std::vector<std::pair<std::string, double>>> Measure(const Sizes& sizes) {
  std::string dir = "/tmp/bench-controller-XXXXXX";
  if (mkdtemp(dir.data()) == nullptr) return ErrnoStatus(errno, dir);
  SLUICE_RETURN_IF_ERROR(FillStore(dir, sizes.jobs));

  std::vector<std::pair<std::string, double>> figures;
  const auto add = [&](const char* name, double value) { figures.emplace_back(name, value); };
  const auto add_median = [&](const char* name, const auto& work) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const double median, MedianMs(sizes.runs, work));
    add(name, median);
    return absl::OkStatus();
  };

  ControllerProcess controller;
  SLUICE_RETURN_IF_ERROR(controller.Start(dir));
  add("start_s", controller.start_seconds());
  add("memory_after_start_mib", controller.ResidentMebibytes());
  const rpc::Channel& channel = controller.channel();

  int submitted = 0;
  const auto submit = [&](int) -> absl::Status {
    const std::string name = absl::StrCat("live-", submitted++);
    job::v1::SubmitRequest request;
    SLUICE_ASSIGN_OR_RETURN(*request.mutable_spec(), ReadSpec(name));
    request.set_name(name);
    request.set_hash(std::string(32, 'h'));
    job::v1::SubmitResponse response;
    return rpc::Call(channel, request, &response);
  };
  while (submitted < sizes.live) SLUICE_RETURN_IF_ERROR(submit(0));
  Fleet fleet;
  const absl::Time joining = absl::Now();
  SLUICE_RETURN_IF_ERROR(fleet.Start(controller.address(), sizes.daemons, dir));
  add("join_all_s", absl::ToDoubleSeconds(absl::Now() - joining));

  const std::string job = absl::StrFormat("%032x", sizes.jobs / 2 + 1);
  const auto list = [&](int) {
    job::v1::ListResponse response;
    return rpc::Call(channel, job::v1::ListRequest(), &response);
  };
  SLUICE_RETURN_IF_ERROR(add_median("list_ms", list));
  SLUICE_RETURN_IF_ERROR(add_median("get_ms", [&](int) {
    job::v1::GetRequest request;
    request.set_job(job);
    job::v1::JobStatus response;
    return rpc::Call(channel, request, &response);
  }));
  SLUICE_RETURN_IF_ERROR(add_median("submit_ms", submit));
  SLUICE_RETURN_IF_ERROR(add_median("watch_ms", [&](int) {
    job::v1::WatchRequest request;
    request.set_job(job);
    rpc::ClientStream stream(channel, *job::v1::WatchRequest::descriptor());
    stream.Write(request);
    stream.WritesDone();
    job::v1::WatchResponse response;
    while (stream.Read(&response)) {
    }
    return stream.Finish();
  }));
  SLUICE_RETURN_IF_ERROR(add_median("daemons_ms", [&](int) {
    admin::v1::DaemonsResponse response;
    return rpc::Call(channel, admin::v1::DaemonsRequest(), &response);
  }));
  SLUICE_RETURN_IF_ERROR(add_median("page_jobs_ms", [&](int) {
    return daemon::HttpGet(controller.ops(), "/ui/api/jobs").empty()
               ? absl::UnavailableError("the page does not answer")
               : absl::OkStatus();
  }));
  SLUICE_RETURN_IF_ERROR(add_median(
      "command_list_ms", [&](int) { return RunCommand(controller, dir, {"job", "list"}); }));
  SLUICE_RETURN_IF_ERROR(add_median("command_describe_ms", [&](int) {
    return RunCommand(controller, dir, {"job", "describe", job});
  }));

  // Nothing but heartbeats.
  const double cpu = controller.CpuSeconds();
  absl::SleepFor(2 * kBeat);
  add("heartbeats_cpu_percent",
      100 * (controller.CpuSeconds() - cpu) / absl::ToDoubleSeconds(2 * kBeat));
  add("memory_mib", controller.ResidentMebibytes());

  SLUICE_RETURN_IF_ERROR(RemoveTree(dir));
  return figures;
}

absl::Status Main(const Sizes& sizes, const Report& report) {
  SLUICE_ASSIGN_OR_RETURN(const auto few,
                          Measure({.jobs = 10, .live = 1, .daemons = 10, .runs = sizes.runs}));
  SLUICE_ASSIGN_OR_RETURN(const auto many, Measure(sizes));
  for (size_t i = 0; i < many.size(); ++i) {
    const auto& [name, value] = many[i];
    report.Add({.name = name,
                .value = value,
                .unit = name.substr(name.rfind('_') + 1),
                .baseline = few[i].second,
                .runs = sizes.runs});
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  CLI::App app(
      "Measures a controller that has many jobs and daemons, beside one that has 10 of each.");
  bool json = false;
  std::string simulate;
  int first = 0;
  sluice::bench::Sizes sizes;
  app.add_flag("--json", json, "print one JSON object per line");
  app.add_option("--jobs", sizes.jobs, "number of finished jobs")->check(CLI::Range(1, 1000000));
  app.add_option("--live", sizes.live, "number of jobs that wait for daemons")
      ->check(CLI::Range(0, 10000));
  app.add_option("--daemons", sizes.daemons, "number of daemons")->check(CLI::Range(1, 10000));
  app.add_option("--runs", sizes.runs, "calls of each kind")->check(CLI::Range(1, 1000));
  app.add_option("--simulate", simulate,
                 "only be --daemons daemons of the controller at this HOST:PORT; used by the bench "
                 "itself");
  app.add_option("--first", first, "number of the first of them");
  CLI11_PARSE(app, argc, argv);

  if (!simulate.empty()) {
    const absl::Status ended = sluice::bench::SimulateDaemons(simulate, first, sizes.daemons);
    std::fprintf(stderr, "%s\n", ended.ToString().c_str());
    return 1;
  }

  const absl::Status status = sluice::bench::Main(sizes, sluice::bench::Report(json));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
