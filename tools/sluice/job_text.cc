#include "tools/sluice/job_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/config/columns.h"
#include "common/rpc/convert.h"
#include "sluice/job/v1/job.pb.h"
#include "tools/sluice/client.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using job::v1::JobStatus;

std::string TimeText(const google::protobuf::Timestamp& time, absl::TimeZone zone) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", rpc::FromProto(time), zone);
}

std::string VersionText(const JobStatus& job) {
  return absl::StrCat(job.version().incarnation(), ".", job.version().number());
}

// The texts with commas between, or `none`.
template <typename Texts>
std::string JoinOr(const Texts& texts, const char* none) {
  return texts.empty() ? none : absl::StrJoin(texts, ", ");
}

}  // namespace

std::string JobListText(const job::v1::ListResponse& list, const std::string& output,
                        absl::TimeZone zone) {
  if (output == "name") {
    return absl::StrJoin(list.jobs(), "", [](std::string* out, const JobStatus& job) {
      absl::StrAppend(out, job.name(), "\n");
    });
  }

  const bool wide = output == "wide";
  std::vector<std::vector<std::string>> rows{{"NAME", "STATE", "STEP", "CREATED", "JOB"}};
  if (wide) rows[0].insert(rows[0].end(), {"OWNER", "VERSION", "CONDITIONS", "DAEMONS"});
  rows[0].push_back("MESSAGE");
  for (const JobStatus& job : list.jobs()) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {job.name(), StateName(job.state()), absl::StrCat(job.step()),
           TimeText(job.created(), zone), job.job()};
    if (wide)
      row.insert(row.end(), {job.owner().empty() ? "-" : job.owner(), VersionText(job),
                             JoinOr(job.conditions(), "-"), JoinOr(job.daemons(), "-")});
    row.push_back(job.starts_when().empty()
                      ? job.message()
                      : absl::StrCat(job.message(), " since ", TimeText(job.since(), zone), "; ",
                                     job.starts_when()));
  }
  return Table(rows);
}

std::string JobText(const JobStatus& job, const std::string& output, absl::TimeZone zone) {
  if (output == "name") return absl::StrCat(job.name(), "\n");
  std::vector<std::vector<std::string>> rows = {
      {"name", job.name()},
      {"job", job.job()},
      {"state",
       absl::StrCat(StateName(job.state()),
                    job.has_since() ? absl::StrCat(" since ", TimeText(job.since(), zone)) : "")},
      {"message", absl::StrCat(job.code(), job.code().empty() ? "" : ": ",
                               job.message().empty() ? "none" : job.message())},
      {"conditions", JoinOr(job.conditions(), "none")},
      {"created", TimeText(job.created(), zone)},
      {"step", absl::StrCat(job.step())},
      {"version", VersionText(job)},
      {"daemons", JoinOr(job.daemons(), "none")}};
  if (!job.starts_when().empty()) rows.insert(rows.begin() + 4, {"starts", job.starts_when()});
  if (output == "wide") {
    const job::v1::JobSpec& spec = job.spec();
    const std::string& model =
        spec.model().has_init() ? spec.model().init().config() : spec.model().path();
    rows.insert(rows.end(), {{"owner", job.owner().empty() ? "none" : job.owner()},
                             {"incarnation", absl::StrCat(job.incarnation())},
                             {"kind", spec.kind()},
                             {"model", model},
                             {"checkpoints", spec.checkpoint().dir()}});
    for (const job::v1::DataSource& source : spec.data().train())
      rows.push_back({"data", absl::StrCat(source.name(), ": ", PathOf(source))});
  }
  return Table(rows);
}

std::string EventsText(const std::vector<common::v1::Event>& events, const std::string& output,
                       absl::TimeZone zone) {
  const bool wide = output == "wide";
  std::vector<std::vector<std::string>> rows{{"SEQ", "TIME", "SEVERITY", "DAEMON"}};
  if (wide) rows[0].insert(rows[0].end(), {"ROLE", "INCARNATION"});
  rows[0].insert(rows[0].end(), {"CODE", "MESSAGE"});
  for (const common::v1::Event& event : events) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {absl::StrCat(event.seq()), TimeText(event.at(), zone),
           std::string(absl::StripPrefix(common::v1::Severity_Name(event.severity()), "SEVERITY_")),
           event.daemon()};
    if (wide)
      row.insert(row.end(),
                 {std::string(absl::StripPrefix(rpc::v1::Role_Name(event.role()), "ROLE_")),
                  absl::StrCat(event.incarnation())});
    row.insert(
        row.end(),
        {event.code(),
         absl::StrCat(event.message(),
                      event.count() > 1 ? absl::StrCat(" (", event.count(), " times)") : "")});
  }
  return Table(rows);
}

}  // namespace sluice::cli
