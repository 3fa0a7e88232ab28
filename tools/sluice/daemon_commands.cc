// Commands about the daemons of a fleet: list, drain, undrain.

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/client.h"
#include "nlohmann/json.hpp"
#include "sluice/admin/v1/admin.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/daemon_text.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"

namespace sluice::cli {
namespace {

struct DaemonOptions {
  std::string server, output, daemon;
};
using DaemonHandler = ExitCode (*)(const DaemonOptions&, const rpc::Channel&);

// The names of the jobs that the caller may see, by id.
absl::StatusOr<std::map<std::string, std::string>> JobNames(const rpc::Channel& channel) {
  SLUICE_ASSIGN_OR_RETURN(const job::v1::ListResponse jobs, ReadJobs(channel, {}, 0));
  std::map<std::string, std::string> names;
  for (const job::v1::JobStatus& job : jobs.jobs()) names[job.job()] = job.name();
  return names;
}

ExitCode ListDaemons(const DaemonOptions& o, const rpc::Channel& channel) {
  admin::v1::DaemonsResponse response;
  if (const absl::Status status = rpc::Call(channel, admin::v1::DaemonsRequest(), &response);
      !status.ok())
    return Complain(status);
  if (IsData(o.output)) return PrintRows(ToJson(response), {"daemons"}, o.output), kDone;
  if (o.output == "name") {
    for (const admin::v1::Daemon& daemon : response.daemons())
      std::printf("%s\n", daemon.daemon().c_str());
    return kDone;
  }
  const auto names = JobNames(channel);
  if (!names.ok()) return Complain(names.status());
  std::fputs(DaemonListText(response, *names, /*wide=*/o.output == "wide").c_str(), stdout);
  return kDone;
}

absl::Status SetDrain(const DaemonOptions& o, const rpc::Channel& channel, bool on) {
  admin::v1::DrainRequest request;
  request.set_daemon(o.daemon);
  request.set_on(on);
  admin::v1::DrainResponse response;
  return rpc::Call(channel, request, &response);
}

ExitCode DrainDaemon(const DaemonOptions& o, const rpc::Channel& channel) {
  if (const absl::Status status = SetDrain(o, channel, true); !status.ok()) return Complain(status);
  std::fprintf(stderr,
               "%s hands over its work and gets no more; it is `drained` in `sluice daemon list` "
               "once nothing is left; `sluice daemon undrain %s` ends this\n",
               o.daemon.c_str(), o.daemon.c_str());
  return kDone;
}

ExitCode UndrainDaemon(const DaemonOptions& o, const rpc::Channel& channel) {
  if (const absl::Status status = SetDrain(o, channel, false); !status.ok())
    return Complain(status);
  std::fprintf(stderr, "%s may get work again\n", o.daemon.c_str());
  return kDone;
}

Command DaemonCommand(const char* name, const char* summary, const char* example,
                      DaemonHandler handler, bool of_one) {
  return {"daemon", name, summary, example, [handler, of_one](CLI::App* app) {
            auto o = std::make_shared<DaemonOptions>();
            if (of_one) app->add_option("DAEMON", o->daemon, "id of the daemon")->required();
            else AddFormats(app, &o->output, {"wide", "name"});
            AddServer(app, &o->server);
            return [o, handler] {
              const auto channel = ConnectToController(o->server);
              return channel.ok() ? handler(*o, **channel) : Complain(channel.status());
            };
          }};
}

}  // namespace

std::vector<Command> DaemonCommands() {
  return {
      DaemonCommand("list", "List the daemons of the fleet, and the jobs that they work for.",
                    "  sluice daemon list\n  sluice daemon list -o wide", ListDaemons, false),
      DaemonCommand("drain",
                    "Let a daemon hand over its work, and give it no more. It goes on running. A "
                    "queue keeps its jobs and gets no further one.",
                    "  sluice daemon drain rollout-1", DrainDaemon, true),
      DaemonCommand("undrain", "Let a drained daemon get work again.",
                    "  sluice daemon undrain rollout-1", UndrainDaemon, true),
  };
}

}  // namespace sluice::cli
