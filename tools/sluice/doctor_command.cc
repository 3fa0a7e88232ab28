// sluice doctor: checks this host, folders and files, and a fleet.

#include "tools/sluice/doctor_command.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/context.h"
#include "tools/sluice/doctor/doctor.h"
#include "tools/sluice/fleet.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kAnswerTime = absl::Seconds(3);

struct DoctorOptions {
  std::vector<std::string> checks, sets;
  std::string data_dir, tls_dir, store, store_password_file, store_ca, job_file, policy_file,
      server, output;
};

absl::StatusOr<FleetAnswer> AskFleet(const std::string& server) {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> channel, ConnectToController(server));
  FleetAnswer answer;
  answer.address = channel->address();
  answer.asked = absl::Now();
  SLUICE_RETURN_IF_ERROR(rpc::Call(*channel, admin::v1::DaemonsRequest(), &answer.daemons,
                                   {.deadline = kAnswerTime, .give_up = kAnswerTime}));
  answer.answered = absl::Now();
  return answer;
}

// The addresses that `dev up` without options would listen on.
std::vector<std::string> UsualAddresses() {
  const FleetOptions fleet{.rollouts = 2, .fixed_ports = true};
  std::vector<std::string> addresses;
  for (const DaemonSpec& spec : FleetSpecs(fleet, PlanCores(fleet))) {
    addresses.push_back(spec.listen);
    addresses.push_back(spec.ops);
  }
  return addresses;
}

}  // namespace

DoctorInputs MakeDoctorInputs(const std::string& data_dir, const std::string& tls_dir,
                              const std::string& server) {
  DoctorInputs in;
  in.now = absl::Now();
  in.monotonic = [] { return Clock::Real()->Monotonic(); };
  in.listen = UsualAddresses();
  in.program_dir = ProgramDir();
  in.data_dir = FindFleetDir(data_dir);
  in.tls_dir = tls_dir;
  if (const char* env = std::getenv("SLUICE_TLS"); tls_dir.empty() && env != nullptr)
    in.tls_dir = env;
  if (auto local = FindRunningFleet(in.data_dir); local.ok()) in.local = *std::move(local);
  const absl::StatusOr<std::string> found = FindController(server);
  // A context that cannot be read is what the check of the controller tells.
  in.server = found.ok() ? *found : ContextsPath();
  if (!found.ok()) in.answer = found.status();
  else if (!in.server.empty()) in.answer = AskFleet(server);
  return in;
}

namespace {

ExitCode RunDoctor(const DoctorOptions& o) {
  const auto checks = SelectChecks(o.checks);
  if (!checks.ok()) return Complain(checks.status());
  DoctorInputs in = MakeDoctorInputs(o.data_dir, o.tls_dir, o.server);
  in.job_file = o.job_file;
  in.policy_file = o.policy_file;
  in.store = o.store;
  in.store_password_file = o.store_password_file;
  in.store_ca = o.store_ca;
  in.sets = o.sets;

  const std::vector<DoctorResult> results = RunChecks(*checks, in);
  if (IsData(o.output)) PrintData(DoctorJson(results), o.output);
  else std::fputs(DoctorText(results).c_str(), stdout);
  return HasFailure(results) ? kFailed : kDone;
}

std::string CheckList() {
  std::string text = "Checks:\n";
  for (const DoctorCheck& check : DoctorChecks())
    absl::StrAppend(&text, "  ", check.group, ".", check.name, ": ", check.what, "\n");
  return text;
}

}  // namespace

std::vector<Command> DoctorCommands() {
  static const std::string* const example =
      new std::string(absl::StrCat("  sluice doctor\n  sluice doctor disk pki.expiry -o json\n"
                                   "  sluice doctor job --job configs/examples/digits.yaml\n"
                                   "  sluice doctor store --store rediss://redis:6379 --store-ca "
                                   "ca.crt\n",
                                   CheckList()));
  return {{"", "doctor",
           "Check this host, its folders and files, and a fleet. Each check says OK, WARN or FAIL, "
           "and what to do. Exit code 1: a check failed.",
           example->c_str(), [](CLI::App* app) {
             auto o = std::make_shared<DoctorOptions>();
             app->add_option("CHECK", o->checks,
                             "groups (disk) or single checks (disk.space); default: all");
             app->add_option(
                 "--data-dir", o->data_dir,
                 "where daemons of this host keep their data; default: that of `dev up`");
             app->add_option("--tls", o->tls_dir, "a TLS folder; default: $SLUICE_TLS");
             app->add_option("--store", o->store, "the --store of controllers with a Redis");
             app->add_option("--store-password-file", o->store_password_file,
                             "file with the password of that Redis; default: the environment "
                             "variable SLUICE_STORE_PASSWORD");
             app->add_option("--store-ca", o->store_ca,
                             "PEM file with the authorities of that Redis; default: those of the "
                             "system");
             app->add_option("--job", o->job_file, "a job file, whose model and data are read too");
             AddSets(app, &o->sets);
             app->add_option("--policy", o->policy_file, "the operator's policy.yaml");
             AddServer(app, &o->server);
             AddFormats(app, &o->output);
             return [o] { return RunDoctor(*o); };
           }}};
}

}  // namespace sluice::cli
