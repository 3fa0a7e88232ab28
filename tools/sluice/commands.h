#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/sluice/exit_code.h"

namespace CLI {
class App;
}

namespace sluice::cli {

// One row of the command table, from which parser and help are made.
struct Command {
  const char* group;  // "job" of `sluice job submit`; empty: none.
  const char* name;
  const char* summary;  // One sentence.
  const char* example;  // Command lines that run.
  // Adds options and arguments; what it returns runs the command.
  std::function<std::function<ExitCode()>(CLI::App* app)> bind;
  bool hidden = false;
};

std::vector<Command> FleetCommands();  // run, dev
std::vector<Command> JobCommands();    // job, why
std::vector<Command> StepsCommands();  // job steps
std::vector<Command> QueueCommands();  // queue
std::vector<Command> EvalCommands();   // eval
std::vector<Command> CkptCommands();   // ckpt
std::vector<Command> LocalCommands();  // config, version

}  // namespace sluice::cli
