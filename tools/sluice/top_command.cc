// sluice top: shows jobs or daemons, once a second.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "sluice/admin/v1/admin.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/interrupts.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/terminal.h"
#include "tools/sluice/top.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);

struct TopOptions {
  std::string what = "jobs", server, output;
  bool once = false;
};

struct FleetView {
  job::v1::ListResponse jobs;
  admin::v1::DaemonsResponse daemons;  // Only if they are shown.
};

absl::StatusOr<FleetView> AskController(const rpc::Channel& channel, const TopOptions& o) {
  FleetView view;
  SLUICE_ASSIGN_OR_RETURN(view.jobs, ReadJobs(channel, /*states=*/{}, /*limit=*/0));
  if (o.what == "daemons")
    SLUICE_RETURN_IF_ERROR(rpc::Call(channel, admin::v1::DaemonsRequest(), &view.daemons));
  return view;
}

std::string ViewText(const TopOptions& o, const FleetView& view, const StepRates& rates,
                     size_t most) {
  return o.what == "jobs" ? TopJobsText(view.jobs, rates, most)
                          : TopDaemonsText(view.daemons, view.jobs, most);
}

ExitCode ShowOnce(const TopOptions& o, const rpc::Channel& channel) {
  const absl::StatusOr<FleetView> view = AskController(channel, o);
  if (!view.ok()) return Complain(view.status());
  if (IsData(o.output)) {
    if (o.what == "jobs") PrintRows(ToJson(view->jobs), {"jobs"}, o.output);
    else PrintRows(ToJson(view->daemons), {"daemons"}, o.output);
  } else {
    std::fputs(ViewText(o, *view, StepRates(), SIZE_MAX).c_str(), stdout);
  }
  return kDone;
}

// Redraws until Ctrl-C. A controller that goes away is asked again.
ExitCode ShowLive(const TopOptions& o, const rpc::Channel& channel) {
  rpc::Cancel cancel;
  Interrupts interrupts([&](int) { cancel.Trigger(); });
  StepRates rates;
  std::string last;
  do {
    const int lines = TerminalRows(stdout);
    const absl::StatusOr<FleetView> view = AskController(channel, o);
    std::string text = absl::FormatTime("%H:%M:%S  ", absl::Now(), absl::LocalTimeZone());
    if (view.ok()) {
      rates.Add(view->jobs, Clock::Real()->Monotonic());
      // The head and the line with what is left out need four lines.
      last = ViewText(o, *view, rates, static_cast<size_t>(std::max(1, lines - 4)));
    } else {
      absl::StrAppend(&text, view.status().message(), "; asking again\n");
    }
    absl::StrAppend(&text, last);

    // Home, then each line with the rest of it cleared, then what is below.
    std::string frame = "\x1b[H";
    for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n'))
      absl::StrAppend(&frame, CutToColumns(std::string(line), TerminalColumns(stdout)), "\x1b[K\n");
    absl::StrAppend(&frame, "\x1b[J");
    std::fputs(frame.c_str(), stdout);
    std::fflush(stdout);
  } while (!cancel.WaitFor(kPeriod));
  return kInterrupted;
}

ExitCode RunTop(const TopOptions& o) {
  const auto channel = ConnectToController(o.server);
  if (!channel.ok()) return Complain(channel.status());
  if (o.once || IsData(o.output) || !IsTerminal(stdout)) return ShowOnce(o, **channel);

  // The other screen of the terminal, so that what was there comes back.
  std::fputs("\x1b[?1049h\x1b[?25l", stdout);
  const ExitCode code = ShowLive(o, **channel);
  std::fputs("\x1b[?25h\x1b[?1049l", stdout);
  std::fflush(stdout);
  return code;
}

}  // namespace

std::vector<Command> TopCommands() {
  return {{"", "top", "Show jobs or daemons, once a second. Ctrl-C ends it.",
           "  sluice top\n  sluice top daemons\n  sluice top daemons --once -o json",
           [](CLI::App* app) {
             auto o = std::make_shared<TopOptions>();
             app->add_option("WHAT", o->what, "jobs or daemons")
                 ->check(CLI::IsMember({"jobs", "daemons"}))
                 ->capture_default_str();
             app->add_flag("--once", o->once,
                           "print once and end; also done if stdout is no terminal");
             AddServer(app, &o->server);
             AddFormats(app, &o->output);
             return [o] { return RunTop(*o); };
           }}};
}

}  // namespace sluice::cli
