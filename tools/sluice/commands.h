#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/sluice/exit_code.h"

namespace CLI {
class App;
}

namespace sluice::cli {

// One row of the command table, from which the parser and the help are built.
struct Command {
  const char* group;  // "job" for `sluice job submit`; empty for a top-level command.
  const char* name;
  const char* summary;  // One sentence.
  const char* example;  // Example command lines for the help.
  // Adds options and arguments to the parser. Returns the function that runs the command.
  std::function<std::function<ExitCode()>(CLI::App* app)> bind;
  // Not shown in the help.
  bool hidden = false;
};

std::vector<Command> FleetCommands();       // run, dev
std::vector<Command> JobCommands();         // job, why
std::vector<Command> ControlCommands();     // job pause, resume, cancel, retry, set, delete
std::vector<Command> DaemonCommands();      // daemon
std::vector<Command> StepsCommands();       // job steps
std::vector<Command> ReportCommands();      // job report
std::vector<Command> LogsCommands();        // job logs
std::vector<Command> QueueCommands();       // queue
std::vector<Command> WeightsCommands();     // weights
std::vector<Command> EvalCommands();        // eval
std::vector<Command> RewardCommands();      // reward score
std::vector<Command> RewardJobCommands();   // reward show, dead, retry, lineage, rescore, reload
std::vector<Command> DataCommands();        // data
std::vector<Command> CkptCommands();        // ckpt
std::vector<Command> LocalCommands();       // config, version
std::vector<Command> PlanCommands();        // plan
std::vector<Command> PkiCommands();         // pki
std::vector<Command> MetaCommands();        // meta
std::vector<Command> DoctorCommands();      // doctor
std::vector<Command> ExplainCommands();     // explain
std::vector<Command> TopCommands();         // top
std::vector<Command> ContextCommands();     // context
std::vector<Command> CompletionCommands();  // completion
std::vector<Command> BugReportCommands();   // bug-report

}  // namespace sluice::cli
