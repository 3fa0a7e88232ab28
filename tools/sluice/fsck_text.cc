#include "tools/sluice/fsck_text.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "tools/sluice/progress.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* LevelName(queue::Durability level) {
  switch (level) {
    case queue::Durability::kMemory: return "memory";
    case queue::Durability::kMetadata: return "metadata";
    case queue::Durability::kFull: return "full";
  }
  return "?";
}

std::string NameOf(const queue::FsckJob& job) {
  return job.name.empty() ? job.job : absl::StrCat(job.name, " (", job.job, ")");
}

std::string LedgerText(const queue::FsckJob& job) {
  const queue::Ledger& ledger = job.ledger;
  return absl::StrCat("accepted ", ledger.accepted, " = durable ", ledger.durable, " + applied ",
                      ledger.applied, " + live ", ledger.live, " + dropped ",
                      ledger.dropped_total());
}

Json LedgerJson(const queue::Ledger& ledger) {
  Json dropped = Json::object();
  for (const auto& [reason, count] : ledger.dropped) dropped[reason] = count;
  return {{"accepted", ledger.accepted},   {"durable", ledger.durable},
          {"applied", ledger.applied},     {"live", ledger.live},
          {"dropped", std::move(dropped)}, {"durable_version", ledger.durable_version},
          {"hash", ToHex(ledger.hash)},    {"event", ledger.event}};
}

void AddDamage(const queue::FsckJob& job, const std::string& data_dir, std::string* out) {
  absl::StrAppend(out, "\n", NameOf(job), "\n");
  if (!job.status.ok()) {
    absl::StrAppend(out, "  damage: ", job.status.message(), "\n");
    if (!job.end_file.empty())
      absl::StrAppend(out, "  intact up to: position ", job.last, ", ", job.end_file, " at offset ",
                      job.end_offset, "\n");
  }
  for (const std::string& rule : job.violations)
    absl::StrAppend(out, "  broken rule: ", rule, "\n");
  absl::StrAppend(out, "  you could: ", FsckHint(job, data_dir), "\n");
}

}  // namespace

std::string FsckHint(const queue::FsckJob& job, const std::string& data_dir) {
  if (job.ok()) return "";
  const ErrorDetail detail = DetailOf(job.status);
  if (!detail.hint.empty()) return detail.hint;
  const std::string dir = absl::StrCat(data_dir, "/jobs/", job.job);
  // The job has broken a rule although its files are intact: a fault in the program.
  if (job.status.ok())
    return absl::StrCat(
        "keep a copy of ", dir,
        " and report it: the files are intact, so the program that wrote them has a bug");
  if (!absl::IsDataLoss(job.status))
    return absl::StrCat("make ", dir, " readable, and check again");
  return absl::StrCat("check the disk; restore ", dir,
                      " from a backup of its last state, or move it out of ", data_dir,
                      "/jobs and start the queue: the job then continues from its trainer's last "
                      "checkpoint, and what came after it is sampled again");
}

std::string FsckText(const queue::FsckReport& report, const std::string& data_dir) {
  if (report.jobs.empty()) return absl::StrCat(data_dir, " holds no jobs\n");
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "ID", "LEVEL", "VERSION", "GROUPS", "SNAPSHOT", "LAST", "REPLAYED", "LOG", "STATE"}};
  // First the table, then the ledgers, the remarks and the damage.
  std::string ledgers, remarks, damage;
  for (const queue::FsckJob& job : report.jobs) {
    rows.push_back({job.name.empty() ? "-" : job.name, job.job, LevelName(job.durability),
                    absl::StrCat(job.version), absl::StrCat(job.groups), absl::StrCat(job.snapshot),
                    absl::StrCat(job.last), absl::StrCat(job.events), ShortBytes(job.bytes),
                    job.ok() ? "ok" : "DAMAGED"});
    if (job.ok())
      absl::StrAppend(&ledgers, job.name.empty() ? job.job : job.name, ": ", LedgerText(job),
                      "   balanced\n");
    if (job.torn)
      absl::StrAppend(&remarks, NameOf(job),
                      ": the log ends in a write that was cut off and never acknowledged; the next "
                      "start ignores it\n");
    for (const std::string& remark : job.remarks)
      absl::StrAppend(&remarks, NameOf(job), ": ", remark, "\n");
    if (!job.ok()) AddDamage(job, data_dir, &damage);
  }
  return absl::StrCat(Table(rows), ledgers.empty() ? "" : "\n", ledgers,
                      remarks.empty() ? "" : "\nharmless:\n", remarks, damage);
}

Json FsckJson(const queue::FsckReport& report, const std::string& data_dir) {
  Json jobs = Json::array();
  for (const queue::FsckJob& job : report.jobs) {
    jobs.push_back({{"job", job.job},
                    {"name", job.name},
                    {"durability", LevelName(job.durability)},
                    {"ok", job.ok()},
                    {"error",
                     {{"reason", ReasonOf(job.status)},
                      {"message", std::string(job.status.message())},
                      {"hint", FsckHint(job, data_dir)}}},
                    {"violations", job.violations},
                    {"remarks", job.remarks},
                    {"snapshot", job.snapshot},
                    {"last", job.last},
                    {"end_file", job.end_file},
                    {"end_offset", job.end_offset},
                    {"torn", job.torn},
                    {"events", job.events},
                    {"log_bytes", job.bytes},
                    {"stored_bytes", job.stored_bytes},
                    {"version", job.version},
                    {"groups", job.groups},
                    {"ledger", LedgerJson(job.ledger)}});
    if (job.ok()) jobs.back()["error"] = nullptr;
  }
  return {{"data_dir", data_dir}, {"ok", report.ok()}, {"jobs", std::move(jobs)}};
}

}  // namespace sluice::cli
