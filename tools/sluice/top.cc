#include "tools/sluice/top.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/rpc/convert.h"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/daemon_text.h"
#include "tools/sluice/progress.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using job::v1::JobStatus;

// "3 RUNNING, 1 WAITING", in the order of the states' numbers.
std::string StateCounts(const job::v1::ListResponse& jobs) {
  std::map<job::v1::JobState, int> counts;
  for (const JobStatus& job : jobs.jobs()) ++counts[job.state()];
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", StateName(entry.first));
  });
}

std::string LoadText(const admin::v1::Daemon& daemon) {
  const std::map<std::string, double> sorted(daemon.load().begin(), daemon.load().end());
  return absl::StrJoin(sorted, " ", [](std::string* out, const auto& entry) {
    absl::StrAppendFormat(out, "%s %.4g", entry.first, entry.second);
  });
}

// Lost daemons come first, and those that have left come last.
int Rank(const admin::v1::Daemon& daemon) { return daemon.left() ? 2 : daemon.lost() ? 0 : 1; }

}  // namespace

void StepRates::Add(const job::v1::ListResponse& jobs, absl::Duration now) {
  for (const JobStatus& job : jobs.jobs()) {
    std::vector<Sample>& samples = samples_[job.job()];
    // A job that goes back to a checkpoint begins anew.
    if (!samples.empty() && job.step() < samples.back().step) samples.clear();
    samples.push_back({now, job.step()});
    while (samples.size() > 2 && samples[1].at <= now - kWindow) samples.erase(samples.begin());
  }
}

double StepRates::PerMinute(const std::string& job) const {
  const auto found = samples_.find(job);
  if (found == samples_.end() || found->second.size() < 2) return -1;
  const Sample& first = found->second.front();
  const Sample& last = found->second.back();
  return static_cast<double>(last.step - first.step) /
         std::max(1e-9, absl::ToDoubleMinutes(last.at - first.at));
}

std::string TopJobsText(const job::v1::ListResponse& jobs, const StepRates& rates, size_t most) {
  std::vector<const JobStatus*> shown;
  for (const JobStatus& job : jobs.jobs()) shown.push_back(&job);
  // The list is newest first, and stays so within the two kinds.
  std::stable_partition(shown.begin(), shown.end(),
                        [](const JobStatus* job) { return !IsFinal(job->state()); });
  const size_t left = shown.size() > most ? shown.size() - most : 0;
  shown.resize(shown.size() - left);

  std::vector<std::vector<std::string>> rows = {
      {"NAME", "STATE", "STEP", "STEPS/MIN", "DAEMONS", "CONDITIONS", "MESSAGE"}};
  for (const JobStatus* job : shown) {
    const double rate = rates.PerMinute(job->job());
    rows.push_back({job->name(), StateName(job->state()), absl::StrCat(job->step()),
                    rate < 0 || IsFinal(job->state()) ? "-" : absl::StrFormat("%.1f", rate),
                    absl::StrCat(job->daemons_size()),
                    job->conditions().empty() ? "-" : absl::StrJoin(job->conditions(), ","),
                    job->message()});
  }
  return absl::StrCat(jobs.jobs_size(), " jobs", jobs.jobs().empty() ? "" : ": ", StateCounts(jobs),
                      "\n", Table(rows),
                      left > 0 ? absl::StrCat("and ", left, " more: `sluice job list`\n") : "");
}

std::string TopDaemonsText(const admin::v1::DaemonsResponse& daemons,
                           const job::v1::ListResponse& jobs, size_t most) {
  std::map<std::string, std::string> names;
  for (const JobStatus& job : jobs.jobs()) names[job.job()] = job.name();
  std::vector<const admin::v1::Daemon*> shown;
  for (const admin::v1::Daemon& daemon : daemons.daemons()) shown.push_back(&daemon);
  std::sort(shown.begin(), shown.end(), [](const admin::v1::Daemon* a, const admin::v1::Daemon* b) {
    return std::tuple(Rank(*a), a->role(), a->daemon()) <
           std::tuple(Rank(*b), b->role(), b->daemon());
  });
  std::map<std::string, int> counts;
  for (const admin::v1::Daemon* daemon : shown) ++counts[DaemonStateText(*daemon)];
  const size_t left = shown.size() > most ? shown.size() - most : 0;
  shown.resize(shown.size() - left);

  std::vector<std::vector<std::string>> rows = {
      {"DAEMON", "ROLE", "POOL", "STATE", "HEARD", "ADDRESS", "BUILD", "JOBS", "LOAD"}};
  for (const admin::v1::Daemon* daemon : shown) {
    std::vector<std::string> works;
    for (const std::string& job : daemon->jobs())
      works.push_back(names.count(job) > 0 ? names[job] : job.substr(0, 8));
    const auto grpc = daemon->addresses().find("grpc");
    const double silent = absl::ToDoubleSeconds(rpc::FromProto(daemon->silent()));
    rows.push_back({daemon->daemon(), RoleText(daemon->role()), PoolText(*daemon),
                    DaemonStateText(*daemon), absl::StrCat(ShortDuration(silent), " ago"),
                    grpc == daemon->addresses().end() ? "-" : grpc->second, daemon->build(),
                    works.empty() ? "-" : absl::StrJoin(works, ","), LoadText(*daemon)});
  }
  const std::string states = absl::StrJoin(counts, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
  return absl::StrCat(daemons.daemons_size(), " daemons", states.empty() ? "" : ": ", states, "\n",
                      Table(rows), left > 0 ? absl::StrCat("and ", left, " more\n") : "");
}

}  // namespace sluice::cli
