#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {
namespace {
// Text that is no UTF-8 must not end the daemon.
std::string AsText(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool Wanted(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

// Columns whose rows all have one length can be cut; others come whole or not at all.
Field CutRows(const Field& field, const Piece& piece, uint64_t first, uint64_t count) {
  if (count == piece.count) return field;
  const uint64_t row = field.bytes.size / piece.count;
  Field cut = field;
  cut.bytes.data =
      std::shared_ptr<const char>(field.bytes.data, field.bytes.data.get() + first * row);
  cut.bytes.size = count * row;
  cut.bytes.crc32c = Crc32c(cut.bytes.view());
  if (!cut.shape.empty()) cut.shape[0] = static_cast<int64_t>(count);
  return cut;
}

std::vector<int32_t> TokensOf(const TokenLog& log) {
  std::vector<int32_t> tokens;
  for (const StoredPiece& stored : log.pieces()) {
    const Field* field = stored.Find("tokens");
    if (field == nullptr || field->bytes.size % sizeof(int32_t) != 0) continue;
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

void ReadPieces(const TokenLog& log, const TrajectoryRef& owner, const Want& want,
                std::vector<Record>& out) {
  const uint64_t to = want.to == 0 ? ~uint64_t{0} : want.to;
  for (const StoredPiece& stored : log.pieces()) {
    const uint64_t first = std::max(stored.piece.at, want.from),
                   last = std::min(stored.piece.at + stored.piece.count, to);
    if (first >= last) continue;
    Record record{.owner = owner, .piece = stored.piece};
    Piece& piece = *record.piece;
    piece.at = first;
    piece.count = static_cast<uint32_t>(last - first);
    if (piece.count != stored.piece.count) {
      piece.runs.clear();
      uint64_t place = stored.piece.at;
      for (VersionRun run : stored.piece.runs) {
        const uint64_t begin = std::max(place, first), end = std::min(place + run.count, last);
        place += run.count;
        run.count = static_cast<uint32_t>(begin < end ? end - begin : 0);
        if (run.count > 0) piece.runs.push_back(run);
      }
    }
    for (const Field& field : stored.fields) {
      const bool cuttable = field.rows.empty() && field.bytes.size % stored.piece.count == 0;
      if (Wanted(want.names, field.name) && (cuttable || piece.count == stored.piece.count)) {
        record.fields.push_back(CutRows(field, stored.piece, first - stored.piece.at, piece.count));
      }
    }
    if (!record.fields.empty()) out.push_back(std::move(record));
  }
}
}  // namespace

absl::StatusOr<ReadAnswer> Job::Read(const Caller& caller, bool controller, const Id16& lease,
                                     const std::vector<Want>& wants) const {
  const LeaseEntry* entry = leases_.Find(lease);
  if (!controller) {
    // A fenced caller is told so, whatever lease it names.
    if (callers_.IsFenced(caller)) return callers_.CheckKnown(caller);

    // The ranks of a gang share the lease of a batch; others are their holder's alone.
    const bool holds = entry != nullptr && entry->incarnation == caller.incarnation &&
                       (entry->worker == caller.worker || entry->kind == LeaseKind::kBatch);
    if (!holds)
      return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                   "Get: the lease is not the current one");
    SLUICE_RETURN_IF_ERROR(callers_.CheckKnown(caller));
  }
  ReadAnswer answer;
  for (const Want& want : wants) {
    const Group* group = groups_.Find(want.owner.group);
    const bool absent =
        group == nullptr || (want.owner.member && *want.owner.member >= group->members.size());
    const GroupMember* member =
        absent || !want.owner.member ? nullptr : &group->members[*want.owner.member];
    const bool other =
        member != nullptr && (member->state == MemberState::kDropped ||
                              (want.owner.attempt != 0 && want.owner.attempt != member->attempt));
    const bool lost = !absent && (member != nullptr ? member->lost() : group->prompt.lost());
    if (absent || other || lost) {
      answer.missing.push_back(want);
      continue;
    }
    if (!controller) {
      const bool covered = entry->kind == LeaseKind::kBatch ? group->batch == entry->batch
                                                            : group->id.ordinal == entry->group;
      if (!covered && !HoldsLeaseOn(caller, *group))
        return Error(absl::StatusCode::kAborted, "LEASE_LOST",
                     absl::StrCat("Get: the lease does not cover ", want.owner.str()));
    }
    if (member == nullptr) {
      ReadPieces(group->prompt, {.group = group->id}, want, answer.records);
      continue;
    }
    const TrajectoryRef owner{group->id, want.owner.member, member->attempt};
    ReadPieces(member->log, owner, want, answer.records);
    Record whole{.owner = owner};
    for (const auto& [name, field] : member->fields) {
      if (Wanted(want.names, name)) whole.fields.push_back(field);
    }
    if (!whole.fields.empty()) answer.records.push_back(std::move(whole));
  }
  return answer;
}

// Whether the caller holds a lease on a member of the group or on a task of one: then one Get may
// read many groups.
bool Job::HoldsLeaseOn(const Caller& caller, const Group& group) const {
  const auto mine = [&](const std::optional<Id16>& lease) {
    const LeaseEntry* entry = lease ? leases_.Find(*lease) : nullptr;
    return entry != nullptr && entry->worker == caller.worker &&
           entry->incarnation == caller.incarnation;
  };
  const auto any_task = [&](const std::vector<TaskProgress>& tasks) {
    return std::any_of(tasks.begin(), tasks.end(),
                       [&](const TaskProgress& task) { return mine(task.lease); });
  };
  return any_task(group.tasks) ||
         std::any_of(group.members.begin(), group.members.end(), [&](const GroupMember& member) {
           return mine(member.lease) || any_task(member.tasks);
         });
}

WatchState Job::watch() const {
  WatchState state{.queue_incarnation = queue_incarnation_,
                   .trainer = callers_.gang(),
                   .version = batches_.version(),
                   .end = replay_end_,
                   .phase = phase_};
  if (engines_.published())
    state.published.push_back({.policy = 0, .version = *engines_.published(), .verified = true});
  return state;
}

StatsAnswer Job::Stats() const {
  StatsAnswer stats{.ledger = ledger_,
                    .version = batches_.version(),
                    .lowest = engines_.LowestVersion(now_).value_or(-1),
                    .admission_staleness = admission_.versions(),
                    .advice = admission_.Advice()};
  stats.groups = {{"open", groups_.open().size()},
                  {"accepted", groups_.accepted().size()},
                  {"in_batch", 0},
                  {"applied", 0},
                  {"quarantined", prompts_.progress().quarantined.size()},
                  {"starved", failures_.CountStarved()},
                  {"overdue", 0}};
  for (const auto& [slot, ordinal] : groups_.open())
    stats.groups["overdue"] += groups_.at(ordinal).overdue;
  for (const auto& [k, batch] : batches_.batches())
    stats.groups[batch.applied ? "applied" : "in_batch"] += batch.groups.size();
  for (const auto& [why, count] : counters_.filtered) stats.groups["filtered_" + why] = count;
  uint64_t overdue = 0, used = 0;
  for (const auto& [step, holders] : groups_.slots().steps())
    (step < batches_.next_cut() ? overdue : used) += holders.size();
  const int64_t window =
      std::max<int64_t>(0, WindowEnd().value_or(batches_.next_cut() - 1) - batches_.next_cut() + 1);
  stats.slots = {{"used", used},
                 {"overdue", overdue},
                 {"limit_per_step", groups_.slots().limit()},
                 {"window_steps", static_cast<uint64_t>(window)}};
  stats.bytes = {{"reserved", groups_.reserved_bytes()},
                 {"stored", groups_.stored_bytes()},
                 {"quota", spec_.quota_bytes},
                 {"share", allowed_bytes()}};
  stats.waiting = {{"Admit", 0}, {"LeaseTasks", 0}, {"AcquireBatch", 0}};
  static constexpr const char* kCalls[] = {"Admit", "LeaseTasks", "AcquireBatch"};
  for (const ParkedCalls::Call& call : parked_.calls()) ++stats.waiting[kCalls[call.input.index()]];
  for (const auto& [age, count] : staleness_) {
    if (count != 0) stats.staleness[absl::StrCat(age)] = count;
  }
  const auto add_bin = [&](const std::string& name, const LengthBin& bin) {
    if (bin.sealed == 0) return;
    stats.acceptance[name] = bin.acceptance();
    if (const std::optional<double> ratio = bin.ratio()) stats.length_ratio[name] = *ratio;
  };
  for (const auto& [source, bins] : counters_.lengths) {
    LengthBin all;
    for (size_t octile = 0; octile < bins.size(); ++octile) {
      add_bin(absl::StrCat(source, "/", octile), bins[octile]);
      all += bins[octile];
    }
    add_bin(source, all);
  }
  return stats;
}

std::vector<PeekRow> Job::Peek(PeekWhat what, const std::string& state, Instant now,
                               bool text) const {
  std::vector<PeekRow> rows;
  const auto add = [&](PeekRow row) {
    if (state.empty() || row.state == state) rows.push_back(std::move(row));
  };
  const std::vector<const Group*> groups = groups_.OldestFirst();
  const auto row_json = [&](const RowRef& row) {
    const std::string source =
        row.source == RowRef::kOutside ? "outside" : spec_.sources[row.source].name;
    return nlohmann::json{{"source", source},
                          {"epoch", row.epoch},
                          {"index", row.index},
                          {"occurrence", row.occurrence}};
  };
  switch (what) {
    case PeekWhat::kGroups:
      for (const Group* group : groups) {
        nlohmann::json members = nlohmann::json::array();
        for (const GroupMember& m : group->members)
          members.push_back(MemberJson(*group, m, now, text));
        nlohmann::json json = {{"row", row_json(group->row)},
                               {"slot", group->slot},
                               {"batch", group->batch},
                               {"members", members}};
        if (text) json["prompt_ids"] = TokensOf(group->prompt);
        add({.node = {NodeKind::kGroup, group->id.hex(), ""},
             .state = Name(group->state),
             .age = now - group->since,
             .json = AsText(json)});
      }
      break;
    case PeekWhat::kTasks:
      for (const Group* group : groups) {
        for (uint32_t m = 0; m < group->members.size(); ++m) {
          for (size_t t = 0; t < group->members[m].tasks.size(); ++t) {
            const TaskProgress& task = group->members[m].tasks[t];
            if (spec_.tasks[t].granularity != Granularity::kTrajectory) continue;
            const std::string id =
                absl::StrCat(TrajectoryRef{group->id, m, group->members[m].attempt}.str(), "/",
                             spec_.tasks[t].name);
            const nlohmann::json json = {
                {"tries_left", task.tries}, {"round", task.round}, {"cause", task.cause}};
            add({.node = {NodeKind::kTask, id, ""},
                 .state = Name(task.state),
                 .worker = task.lease ? task.worker : "",
                 .age = now - task.since,
                 .json = AsText(json)});
          }
        }
      }
      for (const TaskQueue::DeadLetter& letter : tasks_.dead_letters()) {
        const nlohmann::json json = {{"row", row_json(letter.row)}, {"cause", letter.cause}};
        add({.node = {NodeKind::kTask, absl::StrCat(letter.ref.str(), "/", letter.task), ""},
             .state = "dead_letter",
             .worker = letter.worker,
             .age = now - letter.at,
             .json = AsText(json)});
      }
      break;
    case PeekWhat::kBatches:
      for (const auto& [k, batch] : batches_.batches()) {
        const LeaseEntry* lease = batch.lease ? leases_.Find(*batch.lease) : nullptr;
        const nlohmann::json json = {
            {"groups", batch.groups.size()}, {"crc32c", batch.crc32c}, {"hash", ToHex(batch.hash)}};
        add({.node = {NodeKind::kBatch, absl::StrCat(k), ""},
             .state = batch.applied  ? "applied"
                      : batch.lease  ? "leased"
                      : batch.closed ? "frozen"
                                     : "filling",
             .worker = lease ? lease->worker : "",
             .age = lease ? now - lease->granted : absl::ZeroDuration(),
             .json = AsText(json)});
      }
      break;
    case PeekWhat::kPrompts:
      for (const RowRef& row : prompts_.progress().again)
        add({.node = {NodeKind::kGroup, "", ""}, .state = "again", .json = AsText(row_json(row))});
      for (const RowRef& row : prompts_.progress().quarantined)
        add({.node = {NodeKind::kGroup, "", ""},
             .state = "quarantined",
             .json = AsText(row_json(row))});
      break;
    case PeekWhat::kViolations:
      for (const std::string& broken : Violations())
        add({.node = {NodeKind::kJob, options_.id, ""},
             .state = "broken",
             .json = AsText({{"rule", broken}})});
      break;
  }
  return rows;
}

}  // namespace sluice::queue
