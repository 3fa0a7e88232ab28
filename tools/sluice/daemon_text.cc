#include "tools/sluice/daemon_text.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/rpc/convert.h"
#include "sluice/admin/v1/admin.pb.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

std::string AddressText(const admin::v1::Daemon& daemon, const char* listener) {
  const auto address = daemon.addresses().find(listener);
  return address == daemon.addresses().end() ? "-" : address->second;
}

std::string DaemonJobsText(const admin::v1::Daemon& daemon,
                           const std::map<std::string, std::string>& names) {
  std::vector<std::string> jobs;
  for (const std::string& id : daemon.jobs()) {
    const auto name = names.find(id);
    jobs.push_back(name == names.end() ? "(another submitter's)" : name->second);
  }
  return jobs.empty() ? "-" : absl::StrJoin(jobs, ", ");
}

std::string LabelsText(const admin::v1::Daemon& daemon) {
  const std::map<std::string, std::string> sorted(daemon.labels().begin(), daemon.labels().end());
  return sorted.empty() ? "-" : absl::StrJoin(sorted, ",", absl::PairFormatter("="));
}

}  // namespace

std::string RoleText(rpc::v1::Role role) {
  return absl::AsciiStrToLower(absl::StripPrefix(rpc::v1::Role_Name(role), "ROLE_"));
}

std::string DaemonStateText(const admin::v1::Daemon& daemon) {
  if (daemon.lost()) return daemon.left() ? "left" : "lost";
  if (daemon.draining()) return daemon.jobs().empty() ? "drained" : "draining";
  return daemon.jobs().empty() ? "idle" : "working";
}

std::string PoolText(const admin::v1::Daemon& daemon) {
  const auto pool = daemon.labels().find("pool");
  return pool == daemon.labels().end() ? "default" : pool->second;
}

std::string DaemonListText(const admin::v1::DaemonsResponse& response,
                           const std::map<std::string, std::string>& names, bool wide) {
  std::vector<std::vector<std::string>> rows{
      {"DAEMON", "ROLE", "POOL", "STATE", "JOBS", "HEARD", "ADDRESS"}};
  if (wide) rows[0].insert(rows[0].end(), {"OPS", "INCARNATION", "BUILD", "LABELS"});
  for (const admin::v1::Daemon& daemon : response.daemons()) {
    const absl::Duration silent =
        absl::Trunc(rpc::FromProto(daemon.silent()), absl::Milliseconds(100));
    std::vector<std::string>& row = rows.emplace_back();
    row = {daemon.daemon(),
           RoleText(daemon.role()),
           PoolText(daemon),
           DaemonStateText(daemon),
           DaemonJobsText(daemon, names),
           absl::StrCat(absl::FormatDuration(silent), " ago"),
           AddressText(daemon, "grpc")};
    if (wide)
      row.insert(row.end(), {AddressText(daemon, "ops"), absl::StrCat(daemon.incarnation()),
                             daemon.build(), LabelsText(daemon)});
  }
  return Table(rows);
}

}  // namespace sluice::cli
