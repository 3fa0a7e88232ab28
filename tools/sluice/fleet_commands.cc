// Commands that run daemons on this machine.

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/dev.h"
#include "tools/sluice/fleet.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/run.h"

namespace sluice::cli {
namespace {

struct Dev {
  DevOptions options;
  std::string role, signal = "KILL";
};

// Makes a command of `dev`. `extra` adds its options beyond -o and --data-dir.
Command DevCommand(const char* name, const char* summary, const char* example,
                   std::function<void(CLI::App*, Dev*)> extra, ExitCode (*run)(const Dev&),
                   bool hidden = false) {
  return {
      "dev",
      name,
      summary,
      example,
      [extra, run](CLI::App* app) {
        auto dev = std::make_shared<Dev>();
        app->add_option(
            "--data-dir", dev->options.data_dir,
            absl::StrCat(
                "where the daemons keep data and logs; default: that of the fleet that runs, else ",
                DefaultDataDir()));
        AddFormats(app, &dev->options.output, {"name"});
        if (extra) extra(app, dev.get());
        return [dev, run] {
          dev->options.data_dir = FindFleetDir(dev->options.data_dir);
          return run(*dev);
        };
      },
      hidden};
}

void AddThreads(CLI::App* app, std::string* threads) {
  const auto check = [](const std::string& text) {
    return std::string(ParseThreads(text).status().message());
  };
  app->add_option("--threads", *threads,
                  "fixed number of compute threads of each rollout and trainer: 2, or "
                  "rollout=2,trainer=4; default: they share the cores, and while one waits, "
                  "others use its cores")
      ->check(CLI::Validator(check, "N|ROLE=N,..", "threads"));
}

// The daemons work in folders of their own, so the path is made absolute.
void AddFile(CLI::App* app, const std::string& flag, std::string* file, const std::string& doc) {
  app->add_option_function<std::string>(
         flag,
         [file](const std::string& path) {
           *file = std::filesystem::absolute(path).lexically_normal().string();
         },
         doc)
      ->check(CLI::ExistingFile)
      ->type_name("FILE");
}

// The files of the operator that the reward daemons of a fleet read.
template <typename Options>
void AddOperatorFiles(CLI::App* app, Options* options) {
  AddFile(app, "--judges", &options->judges,
          "a file of judges that jobs may ask, such as configs/judges.yaml");
  AddFile(app, "--plugin-servers", &options->plugin_servers,
          "a file of servers that jobs may use as plug-ins, such as configs/plugin-servers.yaml");
}

void AddCounts(CLI::App* app, Dev* dev) {
  app->add_option("--rollouts", dev->options.rollouts, "rollout daemons")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--rewards", dev->options.rewards, "reward daemons")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app->add_option("--trainers", dev->options.trainers,
                  "trainer daemons; each works for one job at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  AddThreads(app, &dev->options.threads);
  app->add_flag("--free-ports", dev->options.free_ports,
                "use any free ports instead of those from 7400 up");
  app->add_flag("--insecure-loopback", dev->options.insecure,
                "no certificates: every process of this machine may call the daemons");
  app->add_flag("--http", dev->options.http,
                "rollouts serve the OpenAI-compatible API: rollout-0 on 127.0.0.1:7422, each "
                "further one three ports higher");
  AddOperatorFiles(app, &dev->options);
}

}  // namespace

std::vector<Command> FleetCommands() {
  return {
      {"", "run",
       "Run one job on daemons of its own, and print its result. Ctrl-C cancels it cleanly, a "
       "second Ctrl-C kills the daemons.",
       "  sluice run configs/examples/digits.yaml\n  sluice run job.yaml --set limits.max_steps=10 "
       "--rollouts 2 -o json",
       [](CLI::App* app) {
         auto o = std::make_shared<RunOptions>();
         app->add_option("FILE", o->file, "the job file")->required();
         AddSets(app, &o->sets);
         app->add_option("--rollouts", o->rollouts,
                         "rollout daemons; default: resources.rollout.min")
             ->check(CLI::Range(1, 64));
         app->add_option("--rewards", o->rewards, "reward daemons; default: resources.reward.min")
             ->check(CLI::Range(1, 64));
         app->add_option(
             "--data-dir", o->data_dir,
             "where the daemons keep data and logs; default: a temporary directory, whose "
             "logs are kept for a day if the run fails");
         AddThreads(app, &o->threads);
         app->add_flag("--insecure-loopback", o->insecure,
                       "no certificates: every process of this machine may call the daemons");
         AddOperatorFiles(app, o.get());
         app->add_flag("-q,--quiet", o->quiet, "print no progress");
         AddFormats(app, &o->output);
         return [o] { return RunJob(*o); };
       }},
      DevCommand("up", "Start the daemons and leave a supervisor that keeps them running.",
                 "  sluice dev up --rollouts 2\n  sluice dev up --trainers 2 --threads "
                 "rollout=1,trainer=2",
                 AddCounts, [](const Dev& dev) { return DevUp(dev.options); }),
      DevCommand("down", "End the daemons; their data stays.", "  sluice dev down", {},
                 [](const Dev& dev) { return DevDown(dev.options); }),
      DevCommand("status", "Show the daemons.", "  sluice dev status -o json", {},
                 [](const Dev& dev) { return DevStatus(dev.options); }),
      DevCommand(
          "kill", "Send a daemon a signal; if it ends, the supervisor starts it again.",
          "  sluice dev kill rollout-1\n  sluice dev kill queue --signal STOP",
          [](CLI::App* app, Dev* dev) {
            app->add_option("ROLE", dev->role, "a daemon's name, or a role (its first daemon)")
                ->required();
            app->add_option("--signal", dev->signal, "KILL, TERM, STOP, CONT, ..")
                ->capture_default_str();
          },
          [](const Dev& dev) { return DevKill(dev.options, dev.role, dev.signal); }),
      DevCommand(
          "supervise", "Keep the daemons running; `dev up` starts this command.", "", AddCounts,
          [](const Dev& dev) { return DevSupervise(dev.options); }, true),
  };
}

}  // namespace sluice::cli
