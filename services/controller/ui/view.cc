#include "services/controller/ui/view.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/controller/translate.h"
#include "sluice/job/v1/spec.pb.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::controller {
namespace {

using Json = nlohmann::ordered_json;

double UnixSeconds(absl::Time time) { return static_cast<double>(absl::ToUnixMillis(time)) / 1e3; }

Json Optional(const std::optional<double>& value) {
  return value.has_value() && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kInfo: return "info";
    case Severity::kWarning: return "warning";
    case Severity::kError: return "error";
    case Severity::kAlarm: return "alarm";
  }
  return "info";
}

job::v1::JobSpec SpecOf(const Job& job) {
  job::v1::JobSpec spec;
  spec.ParseFromString(job.spec);  // Empty if the job is over.
  return spec;
}

// The median time between the last steps. Unset before the second one.
std::optional<double> StepSeconds(const Job& job) {
  if (job.step_seconds.empty()) return std::nullopt;
  std::vector<double> sorted = job.step_seconds;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

// Trained tokens per second over the last steps whose durations are known.
std::optional<double> TokensPerSecond(const Job& job) {
  const size_t steps = std::min(job.step_seconds.size(), job.steps.size());
  const double seconds = std::accumulate(
      job.step_seconds.end() - static_cast<std::ptrdiff_t>(steps), job.step_seconds.end(), 0.0);
  if (seconds <= 0) return std::nullopt;
  double tokens = 0;
  auto step = job.steps.rbegin();
  for (size_t i = 0; i < steps; ++i, ++step) tokens += step->second.tokens;
  return tokens / seconds;
}

// What a live job waits for, for people. Empty while its steps advance.
std::string DescribeWait(const Controller& core, Instant now, const Job& job) {
  if (IsFinal(job.record.state)) return "";
  if (!job.diagnosis.empty()) return job.diagnosis;
  if (!job.starts_when.empty()) return absl::StrCat(job.record.message, "; ", job.starts_when);
  if (!job.record.message.empty()) return job.record.message;
  const std::vector<std::string> missing = core.ListNotReady(job);
  if (!missing.empty()) return absl::StrJoin(missing, "; ");
  if (job.record.state != JobState::kRunning || core.StepsAdvance(now, job)) return "";
  return absl::StrCat("no step for ", DurationText(now.mono - job.last_advance));
}

// The job's workers with what they last said of it.
Json WorkersOf(const Controller& core, const Job& job) {
  Json workers = Json::array();
  const auto add = [&](const std::string& id, absl::string_view role) {
    const auto daemon = core.fleet().daemons().find(id);
    const bool known = daemon != core.fleet().daemons().end();
    Json worker = {
        {"id", id},    {"role", role},     {"state", known ? StateText(daemon->second) : "unknown"},
        {"phase", ""}, {"ready", nullptr}, {"version", nullptr}};
    if (known) {
      const auto progress = daemon->second.progress.find(job.record.id);
      if (progress != daemon->second.progress.end()) {
        worker["phase"] = progress->second.phase;
        worker["ready"] = progress->second.ready;
        // Rewards and queues hold no weights.
        const Role of = daemon->second.record.role;
        if (of == Role::kTrainer || of == Role::kRollout)
          worker["version"] = progress->second.version.number;
      }
    }
    workers.push_back(std::move(worker));
  };

  if (!job.assign.queue.empty() && job.record.stage != Stage::kOver) add(job.assign.queue, "queue");
  for (const Worker& worker : job.assign.workers) add(worker.id, RoleName(worker.role));
  return workers;
}

}  // namespace

std::vector<double> Shrink(const std::vector<double>& values, size_t points) {
  std::vector<double> out;
  points = std::min(points, values.size());
  for (size_t i = 0; i < points; ++i) {
    const size_t begin = i * values.size() / points, end = (i + 1) * values.size() / points;
    const double sum = std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                       values.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
    out.push_back(sum / static_cast<double>(end - begin));
  }
  return out;
}

Json RowOf(const Controller& core, Instant now, const Job& job) {
  const JobRecord& record = job.record;
  const bool ended = IsFinal(record.state);
  Json row = {{"id", record.id},
              {"name", record.name},
              {"order", record.order},
              {"state", StateName(record.state)},
              {"ended", ended},
              {"code", record.code},
              {"message", record.message},
              {"conditions", record.conditions},
              {"owner", record.owner},
              {"created", UnixSeconds(record.created)},
              {"ran_s", Controller::Seconds(job, now.wall)},
              {"step", record.step},
              {"of", nullptr},
              {"spark", nullptr},
              {"reward", nullptr},
              {"tokens_per_s", nullptr},
              {"step_s", nullptr},
              {"left_s", nullptr},
              {"waits", DescribeWait(core, now, job)}};
  if (ended) return row;

  const job::v1::JobSpec spec = SpecOf(job);
  const std::optional<double> step_seconds = StepSeconds(job);
  if (spec.limits().has_max_steps()) {
    row["of"] = spec.limits().max_steps();
    if (step_seconds && record.state == JobState::kRunning) {
      const int64_t left = std::max<int64_t>(0, spec.limits().max_steps() - record.step);
      row["left_s"] = *step_seconds * static_cast<double>(left);
    }
  }

  std::vector<double> rewards;
  for (const auto& [k, step] : job.steps) {
    if (step.signal.reward_mean) rewards.push_back(*step.signal.reward_mean);
  }
  row["spark"] = Shrink(rewards, kSparkPoints);
  if (!rewards.empty()) row["reward"] = rewards.back();
  row["tokens_per_s"] = Optional(TokensPerSecond(job));
  row["step_s"] = Optional(step_seconds);
  return row;
}

Json DetailsOf(const Controller& core, Instant now, const Job& job) {
  const JobRecord& record = job.record;
  const job::v1::JobSpec spec = SpecOf(job);
  Json details = RowOf(core, now, job);
  details["moving"] = core.StepsAdvance(now, job);
  details["state_s"] = absl::ToDoubleSeconds(now.mono - job.state_since);
  details["version"] = absl::StrCat(record.version.incarnation, ".", record.version.number);
  details["max_staleness"] = job.spec.empty() ? Json(nullptr) : Json(spec.queue().max_staleness());
  details["checkpoint"] = record.checkpoint;
  details["restarts"] = record.restarts;
  details["workers"] = WorkersOf(core, job);
  details["ledger"] = ToJson(record.ledger);
  details["ledger_final"] = record.ledger_final;
  details["warnings"] = job.learning.Warnings();
  details["last_event"] = record.last_event;
  details["eval"] = nullptr;
  if (record.eval.versions > 0) {
    details["eval"] = {{"versions", record.eval.versions},
                       {"first", record.eval.first},
                       {"last", record.eval.last},
                       {"best", record.eval.best},
                       {"best_version", record.eval.best_version}};
  }
  return details;
}

Json DaemonsOf(const Controller& core, Instant now) {
  std::map<std::string, std::vector<const Job*>> jobs;  // By daemon.
  for (const std::string& id : core.active()) {
    const Job& job = core.jobs().at(id);
    jobs[job.assign.queue].push_back(&job);
    for (const Worker& worker : job.assign.workers) jobs[worker.id].push_back(&job);
  }

  Json daemons = Json::array();
  for (const auto& [id, daemon] : core.fleet().daemons()) {
    const DaemonRecord& record = daemon.record;
    Json works = Json::array();
    for (const Job* job : jobs[id])
      works.push_back({{"id", job->record.id}, {"name", job->record.name}});
    for (const std::string& job : record.unknown_jobs)
      works.push_back({{"id", job}, {"name", absl::StrCat(job.substr(0, 8), " (unknown)")}});
    daemons.push_back({{"id", id},
                       {"role", RoleName(record.role)},
                       {"state", StateText(daemon)},
                       {"draining", daemon.draining && daemon.present()},
                       {"addresses", record.addresses},
                       {"build", record.build},
                       {"incarnation", record.incarnation},
                       {"load", daemon.load},
                       {"jobs", std::move(works)},
                       {"silent_s", absl::ToDoubleSeconds(now.mono - daemon.last_heard)}});
  }
  return daemons;
}

Json FleetSummary(const Controller& core) {
  Json roles = Json::object();
  for (const Role role : kRoles)
    roles[std::string(RoleName(role))] = {
        {"up", 0}, {"suspect", 0}, {"lost", 0}, {"left", 0}, {"draining", 0}};
  const auto add = [](Json& count) { count = count.get<int>() + 1; };
  for (const auto& [id, daemon] : core.fleet().daemons()) {
    Json& role = roles[std::string(RoleName(daemon.record.role))];
    add(role[std::string(StateText(daemon))]);
    if (daemon.draining && daemon.present()) add(role["draining"]);
  }
  return roles;
}

Json ToJson(const Edge& edge) {
  const auto node = [](const Node& node) {
    return Json{
        {"kind", absl::AsciiStrToLower(node.kind)}, {"id", node.id}, {"daemon", node.daemon}};
  };
  return {{"waiter", node(edge.waiter)},
          {"on", node(edge.on)},
          {"since_s", absl::ToDoubleSeconds(edge.since)},
          {"cause", edge.cause},
          {"next", edge.next},
          {"next_in_s", edge.next_in < absl::ZeroDuration()
                            ? Json(nullptr)
                            : Json(absl::ToDoubleSeconds(edge.next_in))},
          {"hint", edge.hint}};
}

Json ToJson(const Event& event) {
  return {{"seq", event.seq},
          {"at", UnixSeconds(event.at)},
          {"severity", SeverityName(event.severity)},
          {"role", event.role},
          {"daemon", event.daemon},
          {"code", event.code},
          {"message", event.message},
          {"count", event.count}};
}

Json ToJson(const Ledger& ledger) {
  return {{"accepted", ledger.accepted},
          {"durable", ledger.durable},
          {"applied", ledger.applied},
          {"live", ledger.live},
          {"dropped", ledger.dropped},
          {"tokens_generated", ledger.tokens_generated},
          {"tokens_trained", ledger.tokens_trained}};
}

Json ToJson(const queue::v1::StatsResponse& stats) {
  const auto map = [](const auto& from) {
    Json to = Json::object();
    for (const auto& [name, count] : from) to[name] = count;
    return to;
  };
  return {{"ledger", ToJson(FromProto(stats.ledger()))},
          {"groups", map(stats.groups())},
          {"slots", map(stats.slots())},
          {"bytes", map(stats.bytes())},
          {"waiting", map(stats.waiting())},
          {"version", stats.version()},
          {"lowest", stats.lowest()},
          {"advice", stats.advice()}};
}

}  // namespace sluice::controller
