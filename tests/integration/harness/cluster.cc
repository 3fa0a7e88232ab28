#include "tests/integration/harness/cluster.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "nlohmann/json.hpp"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/fleet_tls.h"

namespace sluice::integration {
namespace {

constexpr absl::Duration kStart = absl::Seconds(60);
constexpr size_t kLogTail = 4000;  // Bytes.

std::string FreshDir() {
  const char* const tmp = getenv("TMPDIR");
  std::string name = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/sluice-test-XXXXXX");
  SLUICE_CHECK(mkdtemp(name.data()) != nullptr);
  return name;
}

bool IsController(const std::string& id) { return absl::StartsWith(id, "controller-"); }

}  // namespace

Cluster::Cluster(ClusterOptions options)
    : controllers_(options.controllers),
      store_(std::move(options.store)),
      env_(std::move(options.env)),
      threads_(options.threads),
      tls_(options.tls),
      dir_(FreshDir()) {
  SLUICE_CHECK(controllers_ == 1 || !store_.empty());
  for (int i = 0; i < controllers_; ++i)
    daemons_[absl::StrCat("controller-", i)].binary = "sluice-controller";
  for (int i = 0; i < options.queues; ++i)
    daemons_[absl::StrCat("queue-", i)].binary = "sluice-queue";
  for (int i = 0; i < options.rollouts; ++i)
    daemons_[absl::StrCat("rollout-", i)].binary = "sluice-rollout";
  for (int i = 0; i < options.rewards; ++i)
    daemons_[absl::StrCat("reward-", i)].binary = "sluice-reward";
  for (int i = 0; i < options.trainers; ++i)
    daemons_[absl::StrCat("trainer-", i)].binary = "sluice-trainer";
  for (const auto& [id, place] : options.placements) daemons_.at(id).place = place;
  for (const auto& [id, args] : options.args) daemons_.at(id).args = args;
}

Cluster::~Cluster() {
  const bool failed = keep_folder_ || testing::Test::HasFailure();
  if (failed) PrintLogs();
  for (auto& [id, daemon] : daemons_) daemon.process.reset();
  if (!failed) (void)RemoveTree(dir_);
}

void Cluster::PrintLogs() const {
  std::cerr << "The daemons' logs are kept in " << dir_ << "\n";
  for (const auto& [id, daemon] : daemons_) {
    const std::string log = Log(id);
    std::cerr << "--- " << id << "\n"
              << log.substr(log.size() - std::min(log.size(), kLogTail)) << "\n";
  }
}

std::vector<std::string> Cluster::ids() const {
  std::vector<std::string> ids;
  for (const auto& [id, daemon] : daemons_) ids.push_back(id);
  return ids;
}

std::string Cluster::Log(const std::string& id) const { return ReadFile(LogPath(id)).value_or(""); }

// Makes the certificates as a person does, with the CLI.
absl::Status Cluster::IssueCertificates() {
  const std::string ca = dir_ + "/ca";
  std::vector<std::vector<std::string>> commands = {{"pki", "init", ca}};
  const auto add = [&](const std::string& role, const std::string& name) {
    commands.push_back(
        {"pki", "issue", role, name, "--ca", ca, "--out", cli::FleetTlsDir(dir_, name)});
  };
  for (const auto& [id, daemon] : daemons_) add(daemon.binary.substr(sizeof("sluice-") - 1), id);
  for (const char* submitter : {"submitter", "alice", "bob"}) add("submitter", submitter);
  add("viewer", "viewer");
  add("operator", cli::kFleetOperator);

  for (const std::vector<std::string>& command : commands) {
    SLUICE_ASSIGN_OR_RETURN(
        const Finished done,
        RunToEnd({.binary = "sluice", .args = command, .log = dir_ + "/pki.log"}, kStart));
    if (done.exit != 0) return absl::InternalError(absl::StrCat("sluice pki: ", done.err));
  }
  return cli::BecomeOperator(dir_);
}

absl::Status Cluster::Start() {
  if (tls_) SLUICE_RETURN_IF_ERROR(IssueCertificates());
  for (int i = 0; i < controllers_; ++i)
    SLUICE_RETURN_IF_ERROR(Start(absl::StrCat("controller-", i)));
  if (controllers_ > 1) {
    MutexLock lock(&channels_mu_);
    SLUICE_ASSIGN_OR_RETURN(leader_, rpc::ConnectToLeader(controllers()));
  }
  for (const std::string& id : ids()) {
    if (!IsController(id)) SLUICE_RETURN_IF_ERROR(Start(id));
  }
  return absl::OkStatus();
}

std::vector<std::string> Cluster::ListenArgs(const Daemon& daemon) const {
  if (daemon.place.address.empty()) return {"--listen", daemon.address, "--ops", daemon.ops};
  const auto on_all_interfaces = [](const std::string& address) {
    return absl::StrCat("0.0.0.0", address.substr(address.rfind(':')));
  };
  return {"--listen",     on_all_interfaces(daemon.address),
          "--ops",        on_all_interfaces(daemon.ops),
          "--advertise",  daemon.place.address,
          "--read-root",  SLUICE_SOURCE_DIR "/configs",
          "--write-root", dir_};
}

std::string Cluster::controllers() const {
  std::vector<std::string> addresses;
  for (int i = 0; i < controllers_; ++i)
    addresses.push_back(address(absl::StrCat("controller-", i)));
  return absl::StrJoin(addresses, ",");
}

const rpc::Channel& Cluster::controller() const {
  MutexLock lock(&channels_mu_);
  return leader_ != nullptr ? *leader_ : *daemons_.at("controller-0").channels.back();
}

absl::Status Cluster::Start(const std::string& id, const std::string& failpoints) {
  Daemon& daemon = daemons_.at(id);
  Process::Options options = {
      .binary = daemon.binary, .log = LogPath(id), .network = daemon.place.network};
  options.args = ListenArgs(daemon);
  options.args.insert(options.args.end(), {"--id", id, "--data-dir", absl::StrCat(dir_, "/", id),
                                           "--threads", absl::StrCat(threads_)});
  if (tls_) {
    options.args.insert(options.args.end(), {"--tls", cli::FleetTlsDir(dir_, id)});
  } else {
    options.args.push_back("--insecure-loopback");
  }
  if (!IsController(id)) {
    options.args.insert(options.args.end(), {"--controller", controllers()});
  } else if (!store_.empty()) {
    options.args.insert(options.args.end(), {"--store", store_});
  }
  options.args.insert(options.args.end(), daemon.args.begin(), daemon.args.end());
  options.env = env_;
  options.env["SLUICE_FAILPOINTS"] = failpoints;
  SLUICE_ASSIGN_OR_RETURN(daemon.process, Process::Start(options));

  const absl::StatusOr<std::string> line = daemon.process->ReadLine(kStart);
  const nlohmann::json said =
      nlohmann::json::parse(line.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!said.is_object()) {
    return absl::UnavailableError(absl::StrCat(
        id, " did not start (", line.ok() ? *line : line.status().ToString(), "): ", Log(id)));
  }
  daemon.address = said.at("listening");
  daemon.ops = said.at("ops");

  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel,
                          rpc::Connect(daemon.address, rpc::kDaemonRoles));
  MutexLock lock(&channels_mu_);
  daemon.channels.push_back(std::move(channel));
  return absl::OkStatus();
}

std::shared_ptr<rpc::Channel> Cluster::channel(const std::string& id) const {
  MutexLock lock(&channels_mu_);
  return daemons_.at(id).channels.back();
}

absl::Status Cluster::RemoveData(const std::string& id) {
  SLUICE_CHECK(!process(id).running());
  return RemoveTree(absl::StrCat(dir_, "/", id));
}

absl::Status Cluster::Kill(const std::string& id) {
  Signal(id, SIGKILL);
  return AwaitKilled(id, absl::Seconds(10));
}

void Cluster::Signal(const std::string& id, int signal) { process(id).Signal(signal); }

absl::Status Cluster::AwaitKilled(const std::string& id, absl::Duration timeout) {
  SLUICE_ASSIGN_OR_RETURN(const int how, process(id).Await(timeout));
  return how == -SIGKILL
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(id, " ended with ", how, ", not by signal 9"));
}

absl::StatusOr<int> Cluster::Terminate(const std::string& id, absl::Duration timeout) {
  Signal(id, SIGTERM);
  return process(id).Await(timeout);
}

absl::StatusOr<std::string> Cluster::AwaitLeader(absl::Duration timeout, const std::string& but) {
  const absl::Time deadline = absl::Now() + timeout;
  rpc::Cancel never;
  do {
    for (const std::string& id : ids()) {
      if (!IsController(id) || id == but || !process(id).running()) continue;
      // One that is paused does not answer, and a standby refuses.
      job::v1::ListResponse jobs;
      const absl::Duration limit = absl::Seconds(1);
      const absl::Status asked = rpc::Call(*channel(id), job::v1::ListRequest(), &jobs,
                                           {.deadline = limit, .give_up = limit});
      if (asked.ok()) return id;
    }
  } while (!never.WaitFor(absl::Milliseconds(50)) && absl::Now() < deadline);
  return absl::DeadlineExceededError(
      absl::StrCat("no controller leads after ", absl::FormatDuration(timeout)));
}

absl::Status Cluster::Arm(const std::string& id, const std::string& failpoint,
                          const std::string& action, int nth) {
  admin::v1::FailpointRequest request;
  request.set_name(failpoint);
  request.set_action(action);
  request.set_nth(static_cast<uint32_t>(nth));
  admin::v1::FailpointResponse response;

  const absl::Status armed = rpc::Call(*channel(id), request, &response);

  // The daemon may have died or stopped before it answered.
  const bool lost = (action == "kill" && absl::IsUnavailable(armed)) ||
                    (action == "stop" && absl::IsDeadlineExceeded(armed));
  return lost ? absl::OkStatus() : armed;
}

Process::Options Cluster::SluiceOptions(std::vector<std::string> args) {
  Process::Options options = {.binary = "sluice",
                              .args = std::move(args),
                              .log = absl::StrCat(dir_, "/sluice-", commands_++, ".log")};
  options.env = {{"SLUICE_SERVER", controllers()}, {"SLUICE_DATA_DIR", absl::StrCat(dir_, "/cli")}};
  if (tls_) options.env["SLUICE_TLS"] = cli::FleetTlsDir(dir_, cli::kFleetOperator);
  return options;
}

absl::StatusOr<Finished> Cluster::Sluice(std::vector<std::string> args, absl::Duration timeout) {
  return RunToEnd(SluiceOptions(std::move(args)), timeout);
}

absl::StatusOr<std::unique_ptr<Process>> Cluster::StartSluice(std::vector<std::string> args) {
  Process::Options options = SluiceOptions(std::move(args));
  options.log.clear();
  return Process::Start(options);
}

}  // namespace sluice::integration
