#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "common/rpc/channel.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/exit_code.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"

namespace sluice::cli {

// What a command about one job is called with. Its Options have the members `job`, `server` and
// `output`, which are filled in here.
template <typename Options>
struct JobCommand {
  const char *group, *name, *summary, *example;
  ExitCode (*handler)(const Options& options, const rpc::Channel& channel);
  std::function<void(CLI::App* app, Options* options)> extra;  // Adds more arguments; may be null.
  std::vector<const char*> formats;                            // Beside those of all commands.
};

// Makes a command that takes a job and calls `handler` with a connection to the controller.
template <typename Options>
Command MakeJobCommand(JobCommand<Options> command) {
  return {command.group, command.name, command.summary, command.example, [command](CLI::App* app) {
            auto o = std::make_shared<Options>();
            app->add_option("JOB", o->job, "name or id of the job")->required();
            if (command.extra) command.extra(app, o.get());
            AddServer(app, &o->server);
            AddFormats(app, &o->output, command.formats);
            return [o, handler = command.handler] {
              const auto channel = ConnectToController(o->server);
              return channel.ok() ? handler(*o, **channel) : Complain(channel.status());
            };
          }};
}

}  // namespace sluice::cli
