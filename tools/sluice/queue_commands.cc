// Commands that show and check what the queue holds of a job. The controller passes the requests on
// to the queue. Only the check of a data directory contacts no daemon.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/checkpoint/model_dir.h"
#include "common/rpc/client.h"
#include "common/tokenizer/tokenizer.h"
#include "tools/sluice/client.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/fsck_text.h"
#include "tools/sluice/job_command.h"
#include "tools/sluice/json_output.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/queue_text.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::ordered_json;
using queue::v1::PeekRow;

struct QueueOptions {
  std::string server, output, job, group;
  bool show_text = false;
};

// All rows of one kind. `group` is 16 bytes, or empty for all groups.
absl::StatusOr<std::vector<PeekRow>> PeekAt(const rpc::Channel& channel, const std::string& job,
                                            queue::v1::PeekWhat what, const std::string& group = "",
                                            bool text = false) {
  queue::v1::PeekRequest peek;
  peek.set_what(what);
  peek.set_text(text);
  if (!group.empty()) peek.add_ids(group);
  return PeekRows(channel, job, std::move(peek));
}

// Converts a row to JSON; its field `json`, a text, is parsed too.
Json RowJson(const PeekRow& row) {
  Json json = ToJson(row);
  Json parsed = Json::parse(row.json(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_discarded()) json["json"] = std::move(parsed);
  return json;
}

Json RowsJson(const std::vector<PeekRow>& rows) {
  Json json = Json::array();
  for (const PeekRow& row : rows) json.push_back(RowJson(row));
  return json;
}

ExitCode ShowStats(const QueueOptions& o, const rpc::Channel& channel) {
  const absl::StatusOr<queue::v1::StatsResponse> stats = GetQueueStats(channel, o.job);
  if (!stats.ok()) return Complain(stats.status());
  if (IsData(o.output)) PrintData(ToJson(*stats), o.output);
  else std::fputs(StatsText(*stats).c_str(), stdout);
  return kDone;
}

// Loads the tokenizer of the job's model, to decode token ids. The model must be readable on this
// host.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const rpc::Channel& channel,
                                                               const std::string& job) {
  SLUICE_ASSIGN_OR_RETURN(const job::v1::JobStatus status, GetJob(channel, job));
  const job::v1::Model& model = status.spec().model();
  SLUICE_ASSIGN_OR_RETURN(
      const ModelDir dir,
      ReadModelDir(model.path().empty() ? model.init().config() : model.path()));
  if (dir.tokenizer_path.empty())
    return absl::NotFoundError(
        absl::StrCat(dir.path, " has no tokenizer.json to decode texts with"));
  return Tokenizer::Load(dir.tokenizer_path);
}

ExitCode PeekGroup(const QueueOptions& o, const rpc::Channel& channel) {
  const std::string id = GroupIdOf(o.group);
  if (id.empty()) {
    return Complain(absl::InvalidArgumentError(absl::StrCat(
        o.group,
        " names no group; wanted 32 hex digits, or the short form 1:2f, as `sluice queue peek ",
        o.job, "` lists them")));
  }

  const auto groups = PeekAt(channel, o.job, queue::v1::PEEK_WHAT_GROUPS, id, o.show_text);
  if (!groups.ok()) return Complain(groups.status());
  if (groups->empty())
    return Complain(
        absl::NotFoundError(absl::StrCat("the queue holds no group ", o.group, " of job ", o.job,
                                         ": it was freed or dropped, or never existed")));

  auto tasks = PeekAt(channel, o.job, queue::v1::PEEK_WHAT_TASKS);
  if (!tasks.ok()) return Complain(tasks.status());
  // A task's id begins with the id of its group.
  std::erase_if(*tasks,
                [&](const PeekRow& task) { return task.node().id().substr(0, 32) != ToHex(id); });

  Decode decode;
  if (o.show_text) {
    const auto tokenizer = LoadTokenizer(channel, o.job);
    if (!tokenizer.ok()) return Complain(tokenizer.status());
    decode = [tokenizer = *tokenizer](const std::vector<int32_t>& ids) {
      return tokenizer->Decode(ids, /*skip_special=*/false);
    };
  }

  if (o.output == "name") {
    std::printf("%s\n", BriefGroup((*groups)[0].node().id()).c_str());
    return kDone;
  }
  if (!IsData(o.output)) {
    std::fputs(GroupText((*groups)[0], *tasks, decode).c_str(), stdout);
    return kDone;
  }
  Json group = RowJson((*groups)[0]);
  if (decode && group["json"].is_object()) {
    group["json"]["prompt_text"] =
        decode(group["json"].value("prompt_ids", std::vector<int32_t>()));
    for (Json& member : group["json"]["members"])
      member["text"] = decode(member.value("ids", std::vector<int32_t>()));
  }
  PrintData({{"group", std::move(group)}, {"tasks", RowsJson(*tasks)}}, o.output);
  return kDone;
}

ExitCode PeekJob(const QueueOptions& o, const rpc::Channel& channel) {
  if (!o.group.empty()) return PeekGroup(o, channel);
  if (o.show_text) return Complain(absl::InvalidArgumentError("--show-text needs a GROUP"));
  PeekAnswers answers;
  for (const auto& [what, rows] : {std::pair(queue::v1::PEEK_WHAT_GROUPS, &answers.groups),
                                   std::pair(queue::v1::PEEK_WHAT_TASKS, &answers.tasks),
                                   std::pair(queue::v1::PEEK_WHAT_BATCHES, &answers.batches),
                                   std::pair(queue::v1::PEEK_WHAT_PROMPTS, &answers.prompts)}) {
    auto found = PeekAt(channel, o.job, what);
    if (!found.ok()) return Complain(found.status());
    *rows = *std::move(found);
  }

  if (!IsData(o.output)) {
    std::fputs(PeekText(answers, o.output).c_str(), stdout);
    return kDone;
  }
  PrintRows({{"groups", RowsJson(answers.groups)},
             {"tasks", RowsJson(answers.tasks)},
             {"batches", RowsJson(answers.batches)},
             {"prompts", RowsJson(answers.prompts)}},
            {"groups", "tasks", "batches", "prompts"}, o.output);
  return kDone;
}

// For a job that has ended, only the stored ledger is checked. For others the queue is asked which
// rules its state breaks.
ExitCode CheckJob(const QueueOptions& o, const rpc::Channel& channel) {
  const absl::StatusOr<job::v1::JobStatus> job = GetJob(channel, o.job);
  if (!job.ok()) return Complain(job.status());
  common::v1::Ledger ledger = job->result().ledger();
  std::vector<std::string> damage;
  // A job without a result still has a queue to ask.
  if (!job->has_result()) {
    const auto stats = GetQueueStats(channel, o.job);
    if (!stats.ok()) return Complain(stats.status());
    ledger = stats->ledger();
    const auto rows = PeekAt(channel, o.job, queue::v1::PEEK_WHAT_VIOLATIONS);
    if (!rows.ok()) return Complain(rows.status());
    for (const PeekRow& row : *rows)
      damage.push_back(Json::parse(row.json(), nullptr, false).value("rule", row.json()));
  }

  const int64_t gap = LedgerGap(ledger);
  if (gap != 0) damage.push_back(absl::StrCat("the ledger is off by ", gap, " trajectories"));
  if (IsData(o.output)) {
    PrintData({{"job", job->job()},
               {"balanced", gap == 0},
               {"ledger", ToJson(ledger)},
               {"damage", damage}},
              o.output);
  } else {
    std::printf("%s\n", LedgerLine(ledger).c_str());
    for (const std::string& line : damage) std::printf("damage: %s\n", line.c_str());
    std::printf("%s\n", damage.empty() ? "balanced" : "DAMAGED");
  }
  return damage.empty() ? kDone : kFailed;
}

// Checks the data directory of a queue that does not run.
ExitCode CheckDataDir(const QueueOptions& o) {
  const absl::StatusOr<queue::FsckReport> report = queue::FsckDataDir(o.job);
  if (!report.ok()) return Complain(report.status());
  if (IsData(o.output)) {
    PrintData(FsckJson(*report, o.job), o.output);
  } else {
    std::fputs(FsckText(*report, o.job).c_str(), stdout);
  }
  return report->ok() ? kDone : kFailed;
}

// Job names have no slash. A name without one means a job, unless there is a folder of that name
// with a queue's data.
bool IsDataDir(const std::string& name) {
  return name.find('/') != std::string::npos || name == "." || PathExists(name + "/jobs");
}

using QueueHandler = ExitCode (*)(const QueueOptions&, const rpc::Channel&);

Command QueueCommand(const char* name, const char* summary, const char* example,
                     QueueHandler handler, const std::vector<const char*>& formats = {},
                     std::function<void(CLI::App*, QueueOptions*)> extra = {}) {
  return MakeJobCommand<QueueOptions>(
      {"queue", name, summary, example, handler, std::move(extra), formats});
}

}  // namespace

std::vector<Command> QueueCommands() {
  return {
      QueueCommand("stats",
                   "Show the queue's counts for a running job: ledger, versions, slots, bytes, "
                   "staleness, waiting calls.",
                   "  sluice queue stats digits\n  sluice queue stats digits -o json", ShowStats),
      QueueCommand(
          "peek",
          "Show the groups, tasks, batches and prompts that the queue holds, or one group with its "
          "members.",
          "  sluice queue peek digits\n  sluice queue peek digits 1:2f --show-text", PeekJob,
          {"wide", "name"},
          [](CLI::App* app, QueueOptions* o) {
            app->add_option("GROUP", o->group, "a group, as `sluice queue peek JOB` lists it");
            app->add_flag(
                "--show-text", o->show_text,
                "also show the texts of prompt and answers, decoded by the model's tokenizer");
          }),
      {"queue", "fsck",
       "Check the ledger and the invariants of a job in the running queue, or every checksum, "
       "event and invariant in the data directory of a stopped queue. Exit code 1: damage.",
       "  sluice queue fsck digits\n  sluice queue fsck /var/lib/sluice/queue-0 -o json    # the "
       "--data-dir of a queue that does not run",
       [](CLI::App* app) {
         auto o = std::make_shared<QueueOptions>();
         app->add_option("JOB_OR_DATA_DIR", o->job,
                         "name or id of a job, or a data directory; nothing is written")
             ->required();
         AddServer(app, &o->server);
         AddFormats(app, &o->output);
         return [o] {
           if (IsDataDir(o->job)) return CheckDataDir(*o);
           const auto channel = ConnectToController(o->server);
           return channel.ok() ? CheckJob(*o, **channel) : Complain(channel.status());
         };
       }},
  };
}

}  // namespace sluice::cli
