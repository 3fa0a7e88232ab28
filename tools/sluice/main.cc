#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "tools/sluice/commands.h"

namespace {

constexpr const char* kGroups[][2] = {{"dev", "daemons on this machine, for trying things out"},
                                      {"job", "submit and follow jobs"},
                                      {"queue", "what the queue holds of a job, and its books"},
                                      {"ckpt", "model directories"},
                                      {"config", "job files"}};

}  // namespace

int main(int argc, char** argv) {
  using sluice::cli::Command;
  CLI::App app{"Post-training of language models by reinforcement learning, asynchronously.", "sluice"};
  app.footer(
      "Examples:\n  sluice run configs/examples/digits.yaml\n  sluice dev up && sluice job submit configs/examples/digits.yaml --watch\n"
      "Exit codes: 0 done, 1 failed, 2 misuse or bad config, 3 job failed or cancelled, 4 not allowed, 5 not found, 6 time-out,\n"
      "7 unreachable, 8 conflict, 130 Ctrl-C. Results go to stdout, all else to stderr.");
  std::map<std::string, CLI::App*> groups;
  for (const auto& [name, summary] : kGroups) {
    groups[name] = app.add_subcommand(name, summary);
  }
  std::map<const CLI::App*, std::function<sluice::cli::ExitCode()>> runners;
  for (const std::vector<Command>& table : {sluice::cli::FleetCommands(), sluice::cli::JobCommands(), sluice::cli::QueueCommands(), sluice::cli::EvalCommands(),
                                            sluice::cli::CkptCommands(), sluice::cli::LocalCommands()}) {
    for (const Command& command : table) {
      CLI::App* parent = *command.group == '\0' ? &app : groups.at(command.group);
      CLI::App* sub = parent->add_subcommand(command.name, command.summary);
      if (*command.example != '\0') sub->footer(absl::StrCat("Examples:\n", command.example));
      if (command.hidden) sub->group("");
      runners[sub] = command.bind(sub);
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? sluice::cli::kDone : sluice::cli::kMisuse;
  }
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands()[0];
  if (runners.count(chosen) == 0) {  // A group, or nothing.
    std::fputs(app.help().c_str(), stderr);  // Of the chosen one, with the words before it.
    return sluice::cli::kMisuse;
  }
  return runners.at(chosen)();
}
