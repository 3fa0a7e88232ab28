#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "services/queue/core/job.h"

// Admit: a rollout asks for members to sample.
namespace sluice::queue {
namespace {
constexpr size_t kLargestRow = 1 << 20;

// INVALID_ARGUMENT: the request is malformed. FAILED_PRECONDITION: the caller has not said which
// version it holds.
absl::Status CheckAdmit(const Caller& caller, const Admit& input, bool has_engine) {
  if (input.own && (input.own->source.empty() || input.own->json.size() > kLargestRow)) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_ROW",
                 absl::StrCat("own: source \"", input.own->source, "\", ", input.own->json.size(),
                              " B of JSON; wanted a name and at most ", kLargestRow, " B"));
  }
  if (input.room == 0)
    return Error(absl::StatusCode::kInvalidArgument, "BAD_ROOM", "room is 0, wanted at least 1");
  if (has_engine) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kFailedPrecondition,
                   {.reason = "NOT_YET", .hint = "Renew with the loaded version first"},
                   absl::StrCat(caller.worker, " has not told which version it holds"));
}
}  // namespace

void Job::OnAdmit(const Event& event, const Admit& input) {
  const Caller& caller = event.caller;
  const absl::Status fenced = callers_.CheckNotFenced(caller, WorkerRole::kRollout);
  if (!fenced.ok()) return Answer(event.call, fenced);

  // A repeat is answered even where the caller is not listed any more.
  if (const Reply* kept = callers_.FindKeptAnswer(caller, input.request)) {
    ++counters_.repeats["Admit"];
    AdmitAnswer again = std::get<AdmitAnswer>(*kept);
    again.repeat = true;
    return Answer(event.call, std::move(again));
  }

  absl::Status status = callers_.CheckListed(caller, WorkerRole::kRollout);
  if (status.ok()) status = CheckAdmit(caller, input, engines_.Find(caller.worker) != nullptr);
  if (!status.ok()) return Answer(event.call, status);
  Park(event, input.wait, input);
}

std::optional<Reply> Job::TryAdmit(const Caller& caller, const Admit& input) {
  if (phase_ >= Phase::kClosed)
    return Error(absl::StatusCode::kFailedPrecondition, "CLOSED", "the job is closed");
  if (!failures_.failure().ok()) return failures_.failure();
  if (phase_ != Phase::kOpen || restored_ < 0 || spec_.rows_only || space_ != Space::kOk)
    return std::nullopt;
  const Engines::Engine* const engine = engines_.FindServing(caller, now_);
  if (engine == nullptr) return std::nullopt;
  if (input.own) return TryAdmitOwn(caller, input);

  // Members that nobody holds go before new groups: their groups are older.
  std::vector<queue::Grant> grants;
  GrantUnheld(caller, *engine, input.room, grants);
  uint32_t granted = 0;
  for (const queue::Grant& grant : grants) granted += grant.members.size();
  if (granted < input.room) GrantNew(caller, input.room - granted, grants);
  if (grants.empty()) return std::nullopt;

  AdmitAnswer answer{.grants = std::move(grants), .phase = phase_};
  callers_.KeepAnswer(caller, input.request, answer);
  return answer;
}

std::optional<Reply> Job::TryAdmitOwn(const Caller& caller, const Admit& input) {
  MoveLateSlots();
  const std::optional<int64_t> step = FindFreeStep();
  if (!step || !HasRoomForGroup()) return std::nullopt;

  // No two prompts from outside are known to be the same one, so each gets an index of its own.
  const RowRef row{.source = RowRef::kOutside,
                   .epoch = input.own->ref.epoch,
                   .index = groups_.next_ordinal(),
                   .occurrence = input.own->ref.occurrence};
  const Group& group = OpenGroup(row, input.own, *step);
  AdmitAnswer answer{.phase = phase_};
  for (uint32_t m = 0; m < std::min(input.room, spec_.group_size); ++m)
    GrantMember(group, m, caller, answer.grants);
  callers_.KeepAnswer(caller, input.request, answer);
  return answer;
}

// Slots. ------------------------------------------------------------------------------------------

std::optional<int64_t> Job::WindowEnd() const {
  const std::optional<int64_t> lowest = engines_.LowestVersion(now_);
  if (!lowest) return std::nullopt;
  const int64_t last = *lowest + admission_.whole();
  return spec_.max_steps > 0 ? std::min(last, spec_.max_steps - 1) : last;
}

std::optional<int64_t> Job::FindFreeStep() const {
  const std::optional<int64_t> last = WindowEnd();
  if (!last) return std::nullopt;
  const int64_t next_cut = batches_.next_cut();
  if (const std::optional<int64_t> step = groups_.slots().LowestFree(next_cut, *last)) return step;

  // If the window's width is not a whole number of steps, the step after the window has some slots
  // too. There is no such step if max_steps ends the window, or if that step is cut already.
  const int64_t beyond = *last + 1;
  const bool cut_short = *last != *engines_.LowestVersion(now_) + admission_.whole();
  const bool is_last = spec_.max_steps > 0 && beyond >= spec_.max_steps;
  if (cut_short || beyond < next_cut || is_last) return std::nullopt;

  const uint32_t partial = admission_.partial_slots(groups_.slots().limit());
  return groups_.slots().used(beyond) < partial ? std::optional(beyond) : std::nullopt;
}

// Groups that a cut left behind hold slots of earlier steps. They move to the first free slots
// ahead before any new group gets one.
void Job::MoveLateSlots() {
  const auto& steps = groups_.slots().steps();
  while (!steps.empty() && steps.begin()->first < batches_.next_cut()) {
    const std::optional<int64_t> step = FindFreeStep();
    if (!step) return;
    groups_.MoveSlot(groups_.at(*steps.begin()->second.begin()), *step);
  }
}

bool Job::HasRoomForGroup() const {
  return groups_.reserved_bytes() + spec_.group_bytes() <= allowed_bytes();
}

// Grants. -----------------------------------------------------------------------------------------

const Group& Job::OpenGroup(const RowRef& row, std::optional<Row> own, int64_t step) {
  const Group& group = groups_.Open(queue_incarnation_, row, std::move(own), step, now_);
  tasks_.StartGroupTasks(group, now_);
  return group;
}

void Job::GrantMember(const Group& group, uint32_t index, const Caller& caller,
                      std::vector<queue::Grant>& grants) {
  const Lease lease = leases_.Grant({.kind = LeaseKind::kTrajectory,
                                     .group = group.id.ordinal,
                                     .member = index,
                                     .worker = caller.worker,
                                     .incarnation = caller.incarnation},
                                    now_);
  if (groups_.GrantMember(group, index, lease.id, caller.worker, batches_.version(), now_)) {
    ++ledger_.accepted;
    ++ledger_.live;
  }

  // Members of one group come in one grant.
  if (grants.empty() || grants.back().group != group.id) {
    grants.push_back(
        {.group = group.id,
         .step = group.slot,
         .row = ReadRow(group),
         .seed = GroupSeed(spec_.seed, group.id.ordinal),
         .size = static_cast<uint32_t>(group.members.size()) + group.undrawn,
         .overdue = std::max(absl::ZeroDuration(), group.wave_began + spec_.wait - now_)});
  }
  const GroupMember& member = group.members[index];
  const uint64_t prefix =
      member.log.tokens() == 0 ? 0 : group.prompt.tokens() + member.log.tokens();
  grants.back().members.push_back(
      {.member = index, .attempt = member.attempt, .lease = lease, .prefix = prefix});
}

void Job::GrantUnheld(const Caller& caller, const Engines::Engine& engine, uint32_t room,
                      std::vector<queue::Grant>& grants) {
  // What this engine samples for a later step would be too old there.
  const int64_t last = engine.loaded.version.number + spec_.max_staleness;
  const auto grant_from = [&](bool siblings_only) {
    // A copy, as grants change the index.
    const std::vector<GroupTable::SlotKey> candidates(groups_.unheld().begin(),
                                                      groups_.unheld().end());
    for (const auto& [slot, ordinal] : candidates) {
      if (room == 0 || slot > last) return;
      const Group& group = groups_.at(ordinal);
      const bool sibling =
          std::any_of(group.members.begin(), group.members.end(), [&](const GroupMember& m) {
            return (m.lease || m.state == MemberState::kSealed) && m.worker == caller.worker;
          });
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

  // Siblings of what the caller holds or has sampled come first: their prompt is in its cache.
  grant_from(/*siblings_only=*/true);
  grant_from(/*siblings_only=*/false);
}

void Job::GrantNew(const Caller& caller, uint32_t room, std::vector<queue::Grant>& grants) {
  MoveLateSlots();
  while (room > 0 && HasRoomForGroup()) {
    const std::optional<int64_t> step = FindFreeStep();
    if (!step) return;
    const std::optional<RowRef> row = prompts_.Next(*step);
    for (std::string& news : prompts_.TakeNews())
      effects_->alarms.push_back({"level_up", std::move(news), /*is_news=*/true});
    if (!row) return;
    const Group& group = OpenGroup(*row, /*own=*/std::nullopt, *step);
    for (uint32_t m = 0; m < group.members.size() && room > 0; ++m, --room)
      GrantMember(group, m, caller, grants);
  }
}

}  // namespace sluice::queue
