#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "services/queue/core/job.h"

// Peek: shows people what a job holds, one row per thing.
namespace sluice::queue {
namespace {
// Text that is not UTF-8 is replaced: it must not end the daemon.
std::string AsText(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<int32_t> TokensOf(const TokenLog& log) {
  std::vector<int32_t> tokens;
  for (const StoredPiece& stored : log.pieces()) {
    const Field* field = stored.Find("tokens");
    if (field == nullptr || field->bytes.size % sizeof(int32_t) != 0) continue;
    if (field->bytes.lost()) continue;  // A restart at level `metadata` keeps no tokens.
    const size_t before = tokens.size();
    tokens.resize(before + field->bytes.size / sizeof(int32_t));
    std::memcpy(tokens.data() + before, field->bytes.data.get(), field->bytes.size);
  }
  return tokens;
}

// A member as Peek shows it. `versions`: lowest and highest number among its sampled tokens.
nlohmann::json MemberJson(const Group& group, const GroupMember& member, Instant now, bool text) {
  static constexpr const char* kFinish[] = {"", "stop", "length", "env_end", "truncated"};
  nlohmann::json json = {{"state", Name(member.state)},
                         {"attempt", member.attempt},
                         {"tokens", group.prompt.tokens() + member.log.tokens()},
                         {"worker", member.worker},
                         {"age", absl::ToDoubleSeconds(now - member.since)}};
  if (member.task_reward) json["task_reward"] = *member.task_reward;
  if (member.finish != Finish::kNone) json["finish"] = kFinish[static_cast<int>(member.finish)];
  if (!member.drop_reason.empty()) json["dropped"] = member.drop_reason;

  std::optional<std::pair<int64_t, int64_t>> versions;
  for (const StoredPiece& stored : member.log.pieces()) {
    for (const VersionRun& run : stored.piece.runs) {
      const int64_t number = run.version.number;
      versions = versions ? std::pair(std::min(versions->first, number),
                                      std::max(versions->second, number))
                          : std::pair(number, number);
    }
  }
  if (versions) json["versions"] = {versions->first, versions->second};
  if (text) json["ids"] = TokensOf(member.log);
  return json;
}

nlohmann::json RowJson(const RowRef& row, const Spec& spec) {
  const std::string source =
      row.source == RowRef::kOutside ? "outside" : spec.sources[row.source].name;
  return {{"source", source},
          {"epoch", row.epoch},
          {"index", row.index},
          {"occurrence", row.occurrence}};
}

nlohmann::json GenerationJson(const std::optional<uint32_t>& generation) {
  return generation ? nlohmann::json(GenerationName(*generation)) : nlohmann::json();
}

PeekRow PeekGroup(const Group& group, const Spec& spec, Instant now, bool text) {
  nlohmann::json members = nlohmann::json::array();
  for (const GroupMember& member : group.members)
    members.push_back(MemberJson(group, member, now, text));
  nlohmann::json json = {{"row", RowJson(group.row, spec)},
                         {"generation", GenerationJson(group.generation)},
                         {"slot", group.slot},
                         {"batch", group.batch},
                         {"members", members}};
  if (group.undrawn > 0) json["undrawn"] = group.undrawn;
  if (text) json["prompt_ids"] = TokensOf(group.prompt);
  return {.node = {NodeKind::kGroup, group.id.hex(), ""},
          .state = Name(group.state),
          .age = now - group.since,
          .json = AsText(json),
          .generation = group.generation};
}

PeekRow PeekTask(const Group& group, uint32_t m, size_t t, const Spec& spec, Instant now) {
  const GroupMember& member = group.members[m];
  const TaskProgress& task = member.tasks[t];
  const TrajectoryRef ref{group.id, m, member.attempt};
  const nlohmann::json json = {
      {"tries_left", task.tries}, {"round", task.round}, {"cause", task.cause}};
  return {.node = {NodeKind::kTask, absl::StrCat(ref.str(), "/", spec.tasks[t].name), ""},
          .state = Name(task.state),
          .worker = task.lease ? task.worker : "",
          .age = now - task.since,
          .json = AsText(json),
          .generation = group.generation};
}

// `prompt`: what becomes of the letter's prompt.
PeekRow PeekDeadLetter(const TaskQueue::DeadLetter& letter, const std::string& prompt,
                       const Spec& spec, Instant now) {
  const bool tried = letter.why == TaskQueue::DeadLetter::Why::kOutOfTries;
  const nlohmann::json json = {{"row", RowJson(letter.row, spec)},
                               {"cause", letter.cause},
                               {"why", tried ? "out_of_tries" : "unscorable"},
                               {"generation", GenerationJson(letter.generation)},
                               {"prompt", prompt}};
  return {.node = {NodeKind::kTask, absl::StrCat(letter.ref.str(), "/", letter.task), ""},
          .state = "dead_letter",
          .worker = letter.worker,
          .age = now - letter.at,
          .json = AsText(json),
          .generation = letter.generation};
}

PeekRow PeekBatch(const Batch& batch, const LeaseEntry* lease, Instant now) {
  const nlohmann::json json = {
      {"groups", batch.groups.size()}, {"crc32c", batch.crc32c}, {"hash", ToHex(batch.hash)}};
  return {.node = {NodeKind::kBatch, absl::StrCat(batch.k), ""},
          .state = batch.applied  ? "applied"
                   : batch.lease  ? "leased"
                   : batch.closed ? "frozen"
                                  : "filling",
          .worker = lease ? lease->worker : "",
          .age = lease ? now - lease->granted : absl::ZeroDuration(),
          .json = AsText(json)};
}

PeekRow PeekPrompt(const RowRef& row, const char* state, const Spec& spec) {
  return {.node = {NodeKind::kGroup, "", ""}, .state = state, .json = AsText(RowJson(row, spec))};
}
}  // namespace

std::vector<PeekRow> Job::Peek(PeekWhat what, const std::string& state, Instant now,
                               bool text) const {
  std::vector<PeekRow> rows;
  const auto add = [&](PeekRow row) {
    if (state.empty() || row.state == state) rows.push_back(std::move(row));
  };
  switch (what) {
    case PeekWhat::kGroups:
      for (const Group* group : groups_.OldestFirst()) add(PeekGroup(*group, spec_, now, text));
      break;
    case PeekWhat::kTasks:
      for (const Group* group : groups_.OldestFirst()) {
        for (uint32_t m = 0; m < group->members.size(); ++m) {
          for (size_t t = 0; t < group->members[m].tasks.size(); ++t) {
            if (spec_.tasks[t].granularity == Granularity::kTrajectory)
              add(PeekTask(*group, m, t, spec_, now));
          }
        }
      }
      for (const TaskQueue::DeadLetter& letter : tasks_.dead_letters())
        add(PeekDeadLetter(letter, FateOf(letter), spec_, now));
      break;
    case PeekWhat::kBatches:
      for (const auto& [k, batch] : batches_.batches())
        add(PeekBatch(batch, batch.lease ? leases_.Find(*batch.lease) : nullptr, now));
      break;
    case PeekWhat::kPrompts:
      for (const RowRef& row : prompts_.progress().again) add(PeekPrompt(row, "again", spec_));
      for (const RowRef& row : prompts_.progress().quarantined)
        add(PeekPrompt(row, "quarantined", spec_));
      break;
    case PeekWhat::kViolations:
      for (const std::string& broken : FindViolations()) {
        add({.node = {NodeKind::kJob, options_.id, ""},
             .state = "broken",
             .json = AsText({{"rule", broken}})});
      }
      break;
    case PeekWhat::kLineage:
      for (PeekRow& row : PeekLineage()) add(std::move(row));
      break;
  }
  return rows;
}

std::string Job::FateOf(const TaskQueue::DeadLetter& letter) const {
  const auto same = [&](const RowRef& row) {
    return row.source == letter.row.source && row.index == letter.row.index;
  };
  if (letter.state == TaskQueue::DeadLetter::State::kScored) return "scored since";
  if (letter.row.source == RowRef::kOutside) return "came from outside";
  if (prompts_.IsQuarantined(letter.row)) return "quarantined";
  if (absl::c_any_of(prompts_.progress().again, same)) return "waits to be drawn";
  return groups_.OrdinalsOfRow(letter.row).empty() ? "given up" : "being sampled";
}

// A row for each generation that has scored groups or has workers.
std::vector<PeekRow> Job::PeekLineage() const {
  std::map<uint32_t, std::map<std::string, int64_t>> groups;  // By generation and state.
  for (const Group* group : groups_.OldestFirst()) {
    if (group->generation) ++groups[*group->generation][Name(group->state)];
  }
  std::map<uint32_t, Lineage::Generation> lineage = lineage_.Until(batches_.version());
  for (const auto& [name, unused] : groups) lineage.try_emplace(name);

  std::vector<PeekRow> rows;
  for (const auto& [name, generation] : lineage) {
    const std::vector<std::string> workers = tasks_.FindWorkers(name, /*earlier=*/false),
                                   ending = tasks_.FindWorkers(name, /*earlier=*/true);
    if (generation.steps.empty() && workers.empty() && ending.empty() && !groups.contains(name))
      continue;
    const nlohmann::json json = {{"rewards", generation.rewards},
                                 {"steps", generation.steps},
                                 {"groups", groups[name]},
                                 {"workers", workers.empty() ? ending : workers}};
    rows.push_back({.node = {NodeKind::kVersion, GenerationName(name), ""},
                    .state = !workers.empty()  ? "in_use"
                             : !ending.empty() ? "ending"
                                               : "past",
                    .json = AsText(json),
                    .generation = name});
  }
  return rows;
}

}  // namespace sluice::queue
