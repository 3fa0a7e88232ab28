// Checks of a running fleet, by what its controller says of it.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/daemon/daemon.h"
#include "common/rpc/convert.h"
#include "tools/sluice/daemon_text.h"
#include "tools/sluice/dial.h"
#include "tools/sluice/doctor/checks.h"
#include "tools/sluice/exit_code.h"

namespace sluice::cli {
namespace {

constexpr char kNoFleet[] = "no fleet runs on this host; give --server HOST:PORT";
constexpr char kNoAnswer[] = "see fleet.controller";
constexpr absl::Duration kDialBudget = absl::Seconds(4);

Finding CheckController(const DoctorInputs& in) {
  if (in.server.empty()) return Skip(kNoFleet);
  if (in.answer.ok())
    return Pass(absl::StrCat(in.server, " answered in ",
                             absl::ToInt64Milliseconds(in.answer->answered - in.answer->asked),
                             " ms"));
  const std::string hint = DetailOf(in.answer.status()).hint;
  return Fail(
      std::string(in.answer.status().message()),
      !hint.empty() ? hint
      : absl::IsPermissionDenied(in.answer.status()) || absl::IsUnauthenticated(in.answer.status())
          ? "name the TLS folder of an operator or viewer of this fleet in SLUICE_TLS"
          : absl::StrCat("look whether a controller runs on ", in.server,
                         ", whether this host may reach it, and whether SLUICE_TLS names a "
                         "certificate of its fleet"));
}

Finding CheckDaemons(const DoctorInputs& in) {
  if (in.server.empty()) return Skip(kNoFleet);
  if (!in.answer.ok()) return Skip(kNoAnswer);
  std::vector<std::string> needed, lost, draining;
  std::map<rpc::v1::Role, int> present;
  std::map<std::string, int> pools;
  for (const admin::v1::Daemon& daemon : in.answer->daemons.daemons()) {
    if (daemon.lost()) {
      // One that has left is missed only by the jobs whose data it has.
      if (daemon.left() && daemon.jobs().empty()) continue;
      (daemon.jobs().empty() ? lost : needed)
          .push_back(absl::StrCat(daemon.daemon(), " (pool ", PoolText(daemon), ", silent for ",
                                  absl::ToInt64Seconds(rpc::FromProto(daemon.silent())), " s)"));
      continue;
    }
    ++pools[PoolText(daemon)];
    if (daemon.draining()) draining.push_back(daemon.daemon());
    else ++present[daemon.role()];
  }
  if (!needed.empty())
    return Fail(absl::StrCat("lost, and jobs wait for it: ", absl::StrJoin(needed, ", ")),
                "look into the log of that daemon and start it again");

  std::vector<std::string> missing;
  for (const auto& [role, name] :
       {std::pair{rpc::v1::ROLE_QUEUE, "queue"}, std::pair{rpc::v1::ROLE_ROLLOUT, "rollout"},
        std::pair{rpc::v1::ROLE_REWARD, "reward"}, std::pair{rpc::v1::ROLE_TRAINER, "trainer"}}) {
    if (present[role] == 0) missing.push_back(name);
  }
  if (!missing.empty())
    return Warn(
        absl::StrCat(
            "there is no ", absl::StrJoin(missing, ", no "),
            draining.empty() ? "" : absl::StrCat("; draining: ", absl::StrJoin(draining, ", ")),
            lost.empty() ? "" : absl::StrCat("; lost: ", absl::StrJoin(lost, ", "))),
        "jobs that need that role wait; start such a daemon with --controller, or end its "
        "draining");
  if (!lost.empty())
    return Warn(absl::StrCat("lost: ", absl::StrJoin(lost, ", ")),
                "look into the log of that daemon and start it again; if it is gone for good, its "
                "work is given to others already, and it is forgotten after an hour");
  int count = 0;
  for (const auto& [pool, of_pool] : pools) count += of_pool;
  return Pass(absl::StrCat(
      count, " daemons: ", absl::StrJoin(pools, ", ", [](std::string* out, const auto& pool) {
        absl::StrAppend(out, pool.second, " in pool ", pool.first);
      })));
}

// "1.4" of "1.4.2".
std::string Minor(const std::string& version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  return parts.size() < 2 ? version : absl::StrCat(parts[0], ".", parts[1]);
}

Finding CheckVersions(const DoctorInputs& in) {
  if (in.server.empty()) return Skip(kNoFleet);
  if (!in.answer.ok()) return Skip(kNoAnswer);
  std::vector<std::string> others;
  for (const admin::v1::Daemon& daemon : in.answer->daemons.daemons()) {
    if (!daemon.lost() && Minor(daemon.build()) != Minor(daemon::kBuild))
      others.push_back(absl::StrCat(daemon.daemon(), " ", daemon.build()));
  }
  if (others.empty())
    return Pass(absl::StrCat("all daemons are of version ", Minor(daemon::kBuild)));
  return Fail(absl::StrCat(absl::StrJoin(others, ", "), "; this program is of ", daemon::kBuild),
              "install the same minor version everywhere, controller first");
}

Finding CheckSkew(const DoctorInputs& in) {
  constexpr absl::Duration kMost = absl::Seconds(5);
  if (in.server.empty()) return Skip(kNoFleet);
  if (!in.answer.ok()) return Skip(kNoAnswer);
  if (!in.answer->daemons.has_now()) return Skip("this controller does not tell its time");
  // The controller read its clock between the two times here.
  const absl::Time there = rpc::FromProto(in.answer->daemons.now());
  const absl::Duration ahead = there > in.answer->answered ? there - in.answer->answered
                               : there < in.answer->asked  ? there - in.answer->asked
                                                           : absl::ZeroDuration();
  if (absl::AbsDuration(ahead) <= kMost)
    return Pass(absl::StrCat("the controller's clock and this one differ by less than ",
                             absl::FormatDuration(kMost)));
  return Fail(
      absl::StrCat("the controller's clock is ",
                   absl::FormatDuration(absl::Trunc(absl::AbsDuration(ahead), absl::Seconds(1))),
                   ahead > absl::ZeroDuration() ? " ahead of" : " behind", " this one"),
      "run chrony or systemd-timesyncd on both hosts; certificates and the times of events "
      "depend on it");
}

Finding CheckPeers(const DoctorInputs& in) {
  if (in.server.empty()) return Skip(kNoFleet);
  if (!in.answer.ok()) return Skip(kNoAnswer);
  const absl::Time deadline = absl::Now() + kDialBudget;
  std::vector<std::string> away;
  int reached = 0;
  for (const admin::v1::Daemon& daemon : in.answer->daemons.daemons()) {
    const auto grpc = daemon.addresses().find("grpc");
    if (daemon.lost() || grpc == daemon.addresses().end() || absl::Now() > deadline) continue;
    const absl::Status status = DialTcp(grpc->second, absl::Seconds(1)).status();
    if (status.ok()) ++reached;
    else away.push_back(absl::StrCat(daemon.daemon(), " at ", status.message()));
  }
  if (away.empty()) return Pass(absl::StrCat(reached, " daemons can be reached from this host"));
  return Warn(absl::StrCat("not reached from this host: ", absl::StrJoin(away, ", ")),
              "needed only on hosts of the fleet: there, check --advertise of that daemon, routes, "
              "firewalls and NetworkPolicies");
}

Finding CheckMetrics(const DoctorInputs& in) {
  std::map<std::string, std::string> pages;  // Daemon -> HOST:PORT.
  if (in.answer.ok()) {
    for (const admin::v1::Daemon& daemon : in.answer->daemons.daemons()) {
      const auto ops = daemon.addresses().find("ops");
      if (!daemon.lost() && ops != daemon.addresses().end()) pages[daemon.daemon()] = ops->second;
    }
  }
  if (in.local) {
    for (const DaemonState& daemon : in.local->daemons) pages[daemon.name] = daemon.ops;
  }
  if (pages.empty()) return Skip(in.server.empty() ? kNoFleet : kNoAnswer);

  const absl::Time deadline = absl::Now() + kDialBudget;
  std::vector<std::string> bad;
  for (const auto& [name, address] : pages) {
    if (absl::Now() > deadline) break;
    const absl::StatusOr<std::string> page = HttpGet(address, "/metrics", absl::Seconds(1));
    if (!page.ok()) bad.push_back(absl::StrCat(name, ": ", page.status().message()));
    else if (!absl::StrContains(*page, "sluice_build_info"))
      bad.push_back(absl::StrCat(name, ": ", address, " is no daemon of Sluice"));
  }
  if (bad.empty()) return Pass(absl::StrCat(pages.size(), " daemons serve /metrics"));
  return Warn(absl::StrJoin(bad, "; "),
              "Prometheus must reach these ports (--ops); this host need not");
}

}  // namespace

std::vector<DoctorCheck> FleetChecks() {
  return {{"fleet", "controller", "the controller answers", CheckController},
          {"fleet", "daemons", "no daemon is lost, and each role is there", CheckDaemons},
          {"fleet", "versions", "all daemons are of the same minor version", CheckVersions},
          {"fleet", "clock", "this host and the controller agree on the time", CheckSkew},
          {"fleet", "peers", "the daemons' ports answer", CheckPeers},
          {"metrics", "scrape", "the daemons serve /metrics", CheckMetrics}};
}

}  // namespace sluice::cli
