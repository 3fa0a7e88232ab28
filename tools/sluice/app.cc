#include "tools/sluice/app.h"

#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/trace.h"
#include "common/daemon/daemon.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/options.h"

namespace sluice::cli {
namespace {

constexpr const char* kGroups[][2] = {
    {"dev", "run daemons on this machine, to try things out"},
    {"job", "submit and follow jobs"},
    {"daemon", "show the daemons of a fleet, and take one out of work"},
    {"queue", "show and check what the queue holds for a job"},
    {"weights", "show and check the weight versions of a job"},
    {"reward", "score answers by hand; the rewards of jobs that run"},
    {"data", "check the rows of a job's data"},
    {"ckpt", "create and check model directories and checkpoints"},
    {"config", "check and print job files"},
    {"context", "name fleets, so that commands find them"},
    {"pki", "make and show the certificates of a fleet"},
    {"meta", "copy the controller's job store, and restore it"}};

}  // namespace

SluiceApp::SluiceApp()
    : app_("Post-training of language models by reinforcement learning, asynchronously.",
           "sluice") {
  app_.footer(
      "Examples:\n  sluice run configs/examples/digits.yaml\n  sluice dev up && sluice job submit "
      "configs/examples/digits.yaml --watch\n"
      "Exit codes: 0 done, 1 failed, 2 misuse or bad config, 3 job failed or cancelled, 4 not "
      "allowed, 5 not found, 6 time-out,\n"
      "7 unreachable, 8 conflict, 130 Ctrl-C. Results go to stdout, all else to stderr.");
  app_.set_version_flag("--version", daemon::kBuild, "print the version of the command and exit");
  // One command at most: else an argument that is named like a command, such as a job "run", would
  // begin a second one.
  app_.require_subcommand(0, 1);
  AddContext(&app_);
  std::map<std::string, CLI::App*> groups;
  for (const auto& [name, summary] : kGroups) {
    groups[name] = app_.add_subcommand(name, summary)->require_subcommand(0, 1);
  }
  for (const std::vector<Command>& table :
       {FleetCommands(),     JobCommands(),     ControlCommands(), DaemonCommands(),
        StepsCommands(),     ReportCommands(),  LogsCommands(),    QueueCommands(),
        EvalCommands(),      RewardCommands(),  CkptCommands(),    LocalCommands(),
        PlanCommands(),      PkiCommands(),     MetaCommands(),    DoctorCommands(),
        ExplainCommands(),   TopCommands(),     ContextCommands(), CompletionCommands(),
        BugReportCommands(), WeightsCommands(), DataCommands(),    RewardJobCommands()}) {
    for (const Command& command : table) {
      CLI::App* parent = *command.group == '\0' ? &app_ : groups.at(command.group);
      CLI::App* sub = parent->add_subcommand(command.name, command.summary);
      if (*command.example != '\0') sub->footer(absl::StrCat("Examples:\n", command.example));
      if (command.hidden) sub->group("");
      runners_[sub] = command.bind(sub);
    }
  }
}

ExitCode SluiceApp::Run() {
  const CLI::App* chosen = &app_;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands()[0];
  if (runners_.count(chosen) == 0) {
    std::fputs(app_.help().c_str(), stderr);  // CLI11 returns the help of the chosen group here.
    return kMisuse;
  }

  if (app_.count("--context") > 0 && chosen->get_option_no_throw("--context") == nullptr) {
    return Complain(absl::InvalidArgumentError(absl::StrCat(
        "`", chosen->get_name(), "` has no option --context: it calls no controller")));
  }

  // All calls of one command are one trace.
  const Trace trace = MakeTrace();
  SetProcessTrace(trace);
  if (VerboseFlag()) std::fprintf(stderr, "trace %s\n", trace.id.c_str());
  return runners_.at(chosen)();
}

}  // namespace sluice::cli
