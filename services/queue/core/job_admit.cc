#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

namespace sluice::queue {
namespace {
constexpr size_t kLargestRow = 1 << 20;
}  // namespace

void Job::OnAdmit(const Event& event, const Admit& input) {
  const Caller& caller = event.caller;
  if (absl::Status fenced = Fence(caller, WorkerRole::kRollout); !fenced.ok())
    return Answer(event.call, fenced);
  if (const Reply* kept = Kept(caller, input.request)) {
    ++counters_.repeats["Admit"];
    AdmitAnswer again = std::get<AdmitAnswer>(*kept);
    again.repeat = true;
    return Answer(event.call, std::move(again));
  }
  if (absl::Status listed = Listed(caller, WorkerRole::kRollout); !listed.ok())
    return Answer(event.call, listed);
  if (input.own && (input.own->source.empty() || input.own->json.size() > kLargestRow)) {
    return Answer(
        event.call,
        Error(absl::StatusCode::kInvalidArgument, "BAD_ROW",
              absl::StrCat("own: source \"", input.own->source, "\", ", input.own->json.size(),
                           " B of JSON; wanted a name and at most ", kLargestRow, " B")));
  }
  if (input.room == 0)
    return Answer(event.call, Error(absl::StatusCode::kInvalidArgument, "BAD_ROOM",
                                    "room is 0, wanted at least 1"));
  if (!engines_.contains(caller.worker)) {
    return Answer(event.call,
                  ErrorWith(absl::StatusCode::kFailedPrecondition,
                            {.reason = "NOT_YET", .hint = "Renew with the loaded version first"},
                            absl::StrCat(caller.worker, " has not told which version it holds")));
  }
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryAdmit(const Caller& caller, const Admit& input) {
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  if (!failure_.ok()) return failure_;
  if (phase_ != Phase::kOpen || restored_ < 0 || spec_.rows_only || space_ != Space::kOk)
    return std::nullopt;
  const Engine* engine = Serving(caller);
  if (engine == nullptr) return std::nullopt;
  if (input.own) return TryAdmitOwn(caller, input);
  std::vector<queue::Grant> grants;
  GrantUnheld(caller, *engine, input.room, grants);
  uint32_t granted = 0;
  for (const queue::Grant& grant : grants) granted += grant.members.size();
  if (granted < input.room) GrantNew(caller, input.room - granted, grants);
  if (grants.empty()) return std::nullopt;
  AdmitAnswer answer{.grants = std::move(grants), .phase = phase_};
  Keep(caller, input.request, answer);
  return answer;
}

// Engines. ----------------------------------------------------------------------------------------

// Not so an engine that holds what a gang trained of which this queue, having lost the job, knows
// nothing: it is to load anew.
bool Job::Lives(const Engine& engine) const {
  const PolicyVersion& version = engine.loaded.version;
  return engine.renewed + leases_.ttl() > now_ && engine.loaded.verified &&
         branch_.Holds(version) && reached_.contains(version.incarnation);
}

std::optional<int64_t> Job::NewestLoaded() const {
  std::optional<int64_t> newest;
  for (const auto& [worker, engine] : engines_) {
    if (!Lives(engine)) continue;
    newest = std::max(newest.value_or(engine.loaded.version.number), engine.loaded.version.number);
  }
  return newest;
}

bool Job::CountsForL(const Engine& engine) const {
  if (!Lives(engine)) return false;
  const uint32_t span = spec_.max_version_span == 0 ? spec_.max_staleness : spec_.max_version_span;
  return *NewestLoaded() - engine.loaded.version.number <= span;
}

std::optional<int64_t> Job::Lowest() const {
  std::optional<int64_t> lowest;
  for (const auto& [worker, engine] : engines_) {
    if (!CountsForL(engine)) continue;
    lowest = std::min(lowest.value_or(engine.loaded.version.number), engine.loaded.version.number);
  }
  return lowest;
}

const Job::Engine* Job::Serving(const Caller& caller) const {
  const auto it = engines_.find(caller.worker);
  if (it == engines_.end() || it->second.incarnation != caller.incarnation ||
      !CountsForL(it->second))
    return nullptr;
  return &it->second;
}

// Slots. ------------------------------------------------------------------------------------------

std::optional<int64_t> Job::WindowEnd() const {
  const std::optional<int64_t> lowest = Lowest();
  if (!lowest) return std::nullopt;
  int64_t last = *lowest + admission_.whole();
  if (spec_.max_steps > 0) last = std::min(last, spec_.max_steps - 1);
  return last;
}

std::optional<int64_t> Job::FreeStep() const {
  const std::optional<int64_t> last = WindowEnd();
  if (!last) return std::nullopt;
  if (const std::optional<int64_t> step = slots_.LowestFree(next_cut_, *last)) return step;
  const int64_t beyond = std::max(*last + 1, next_cut_);
  const bool some = *last == *Lowest() + admission_.whole() && beyond == *last + 1 &&
                    (spec_.max_steps == 0 || beyond < spec_.max_steps);
  return some && slots_.used(beyond) < admission_.partial_slots(slots_.limit())
             ? std::optional(beyond)
             : std::nullopt;
}

void Job::MoveSlot(Group& group, int64_t step) {
  RemoveIndexes(group);
  slots_.Free(group.slot, group.id.ordinal);
  slots_.Take(step, group.id.ordinal);
  group.slot = step;
  AddIndexes(group);
}

// Groups that a cut left behind hold slots of steps gone by; they move to the first free ones
// ahead, before any new group.
void Job::Reslot() {
  while (!slots_.steps().empty() && slots_.steps().begin()->first < next_cut_) {
    const std::optional<int64_t> step = FreeStep();
    if (!step) return;
    MoveSlot(*groups_.at(*slots_.steps().begin()->second.begin()), *step);
  }
}

void Job::AddIndexes(const Group& group) {
  if (group.state != GroupState::kOpen) return;
  open_.insert({group.slot, group.id.ordinal});
  if (group.has_unheld()) unheld_.insert({group.slot, group.id.ordinal});
}

void Job::RemoveIndexes(const Group& group) {
  open_.erase({group.slot, group.id.ordinal});
  unheld_.erase({group.slot, group.id.ordinal});
}

// Grants. -----------------------------------------------------------------------------------------

Group& Job::OpenGroup(const RowRef& row, int64_t step, uint32_t size) {
  auto group = std::make_unique<Group>();
  group->id = {queue_incarnation_, next_group_++};
  group->row = row;
  group->slot = step;
  group->opened = group->since = now_;
  group->members.resize(size);
  for (GroupMember& member : group->members) member.since = now_;
  if (!spec_.rows_only && spec_.has_task(Granularity::kGroup)) {
    group->tasks.resize(spec_.tasks.size());
    for (uint32_t t = 0; t < group->tasks.size(); ++t)
      ResetTask(t, Granularity::kGroup, group->tasks[t]);
  }
  by_prompt_[{row.source, row.index}].insert(group->id.ordinal);
  Group& opened = *group;
  groups_.emplace(opened.id.ordinal, std::move(group));
  return opened;
}

void Job::GrantMember(Group& group, uint32_t index, const Caller& caller,
                      std::vector<queue::Grant>& grants) {
  GroupMember& member = group.members[index];
  RemoveIndexes(group);
  const Lease lease = leases_.Grant({.kind = LeaseKind::kTrajectory,
                                     .group = group.id.ordinal,
                                     .member = index,
                                     .worker = caller.worker,
                                     .incarnation = caller.incarnation},
                                    now_);
  member.lease = lease.id;
  member.worker = caller.worker;
  member.since = member.progress = now_;
  stalling_.insert({now_ + spec_.stalled_after(), {group.id.ordinal, index}});
  if (!member.granted) {
    member.granted = true;
    member.began = now_;
    member.began_at = version_;
    ++ledger_.accepted;
    ++ledger_.live;
  }
  AddIndexes(group);
  if (grants.empty() || grants.back().group != group.id) {
    grants.push_back({.group = group.id,
                      .step = group.slot,
                      .row = RowOf(group),
                      .seed = GroupSeed(spec_.seed, group.id.ordinal),
                      .size = static_cast<uint32_t>(group.members.size()),
                      .overdue = std::max(absl::ZeroDuration(), group.opened + spec_.wait - now_)});
  }
  const uint64_t prefix =
      member.log.tokens() == 0 ? 0 : group.prompt.tokens() + member.log.tokens();
  grants.back().members.push_back(
      {.member = index, .attempt = member.attempt, .lease = lease, .prefix = prefix});
}

Row Job::RowOf(const Group& group) const {
  return group.own ? *group.own : prompts_.Read(group.row);
}

const std::string& Job::SourceName(const Group& group) const {
  return group.own ? group.own->source : spec_.sources[group.row.source].name;
}

void Job::Open(Group& group) {
  slots_.Take(group.slot, group.id.ordinal);
  reserved_bytes_ += spec_.group_bytes();
  overdue_.push_back({now_ + spec_.wait, group.id.ordinal});
  AddIndexes(group);
}

std::optional<Reply> Job::TryAdmitOwn(const Caller& caller, const Admit& input) {
  Reslot();
  const std::optional<int64_t> step = FreeStep();
  if (!step || reserved_bytes_ + spec_.group_bytes() > allowed_bytes()) return std::nullopt;
  // No two prompts from outside are known to be the same one.
  Group& group = OpenGroup({.source = RowRef::kOutside,
                            .epoch = input.own->ref.epoch,
                            .index = next_group_,
                            .occurrence = input.own->ref.occurrence},
                           *step, spec_.group_size);
  group.own = input.own;
  Open(group);
  AdmitAnswer answer{.phase = phase_};
  for (uint32_t m = 0; m < std::min(input.room, spec_.group_size); ++m)
    GrantMember(group, m, caller, answer.grants);
  Keep(caller, input.request, answer);
  return answer;
}

void Job::GrantUnheld(const Caller& caller, const Engine& engine, uint32_t room,
                      std::vector<queue::Grant>& grants) {
  const int64_t last = engine.loaded.version.number + spec_.max_staleness;
  const auto grant_from = [&](bool siblings_only) {
    const std::vector<std::pair<int64_t, uint64_t>> candidates(unheld_.begin(), unheld_.end());
    for (const auto& [slot, ordinal] : candidates) {
      if (room == 0 || slot > last) return;
      Group& group = *groups_.at(ordinal);
      const bool sibling =
          std::any_of(group.members.begin(), group.members.end(),
                      [&](const GroupMember& m) { return m.lease && m.worker == caller.worker; });
      if (siblings_only && !sibling) continue;
      for (uint32_t m = 0; m < group.members.size() && room > 0; ++m) {
        const GroupMember& member = group.members[m];
        if (member.lease || member.state == MemberState::kSealed ||
            member.state == MemberState::kDropped)
          continue;
        GrantMember(group, m, caller, grants);
        --room;
      }
    }
  };
  grant_from(/*siblings_only=*/true);
  grant_from(/*siblings_only=*/false);
}

void Job::GrantNew(const Caller& caller, uint32_t room, std::vector<queue::Grant>& grants) {
  Reslot();
  while (room > 0 && reserved_bytes_ + spec_.group_bytes() <= allowed_bytes()) {
    const std::optional<int64_t> step = FreeStep();
    if (!step) return;
    const std::optional<RowRef> row = prompts_.Next();
    if (!row) return;
    Group& group = OpenGroup(*row, *step, spec_.group_size);
    Open(group);
    for (uint32_t m = 0; m < group.members.size() && room > 0; ++m, --room)
      GrantMember(group, m, caller, grants);
  }
}

}  // namespace sluice::queue
