#include "services/queue/core/group_table.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/base/status.h"

namespace sluice::queue {

// Looking up. -------------------------------------------------------------------------------------

const Group* GroupTable::FindOrdinal(uint64_t ordinal) const {
  const auto it = groups_.find(ordinal);
  return it == groups_.end() ? nullptr : it->second.get();
}

const Group* GroupTable::Find(const GroupId& id) const {
  const Group* const group = FindOrdinal(id.ordinal);
  return group == nullptr || group->id != id ? nullptr : group;
}

std::vector<const Group*> GroupTable::OldestFirst() const {
  std::vector<const Group*> groups;
  groups.reserve(groups_.size());
  for (const auto& [ordinal, group] : groups_) groups.push_back(group.get());
  std::sort(groups.begin(), groups.end(),
            [](const Group* a, const Group* b) { return a->id < b->id; });
  return groups;
}

const std::set<uint64_t>& GroupTable::OrdinalsOfRow(const RowRef& row) const {
  static const auto* const kNone = new std::set<uint64_t>();
  const auto it = by_row_.find({row.source, row.index});
  return it == by_row_.end() ? *kNone : it->second;
}

// Indexes. ----------------------------------------------------------------------------------------

void GroupTable::AddIndexes(const Group& group) {
  if (group.state != GroupState::kOpen) return;
  SLUICE_CHECK(group.slot >= 0);
  open_.insert({group.slot, group.id.ordinal});
  if (group.has_unheld()) unheld_.insert({group.slot, group.id.ordinal});
}

void GroupTable::RemoveIndexes(const Group& group) {
  open_.erase({group.slot, group.id.ordinal});
  unheld_.erase({group.slot, group.id.ordinal});
}

void GroupTable::UpdateUnheld(const Group& group) {
  if (group.state == GroupState::kOpen && group.has_unheld()) {
    unheld_.insert({group.slot, group.id.ordinal});
  } else {
    unheld_.erase({group.slot, group.id.ordinal});
  }
}

// A group's life. ---------------------------------------------------------------------------------

Group& GroupTable::Create(uint32_t queue_incarnation, const RowRef& row, uint32_t size,
                          Instant now) {
  auto created = std::make_unique<Group>();
  Group& group = *created;
  group.id = {queue_incarnation, next_ordinal_++};
  group.row = row;
  group.opened = group.since = group.wave_began = now;
  group.members.resize(size);
  for (GroupMember& member : group.members) member.since = now;

  by_row_[{row.source, row.index}].insert(group.id.ordinal);
  SLUICE_CHECK(groups_.emplace(group.id.ordinal, std::move(created)).second);
  return group;
}

const Group& GroupTable::Open(uint32_t queue_incarnation, const RowRef& row, std::optional<Row> own,
                              int64_t step, Instant now) {
  const bool waves = spec_.first_wave > 0 && !own;
  Group& group = Create(queue_incarnation, row, waves ? spec_.first_wave : spec_.group_size, now);
  group.undrawn = spec_.group_size - static_cast<uint32_t>(group.members.size());
  group.own = std::move(own);
  group.slot = step;
  slots_.Take(step, group.id.ordinal);
  reserved_bytes_ += spec_.group_bytes();
  overdue_.push_back({now + spec_.wait, group.id.ordinal});
  AddIndexes(group);
  return group;
}

const Group& GroupTable::OpenSupervised(uint32_t queue_incarnation, const RowRef& row, int64_t k,
                                        Instant now) {
  Group& group = Create(queue_incarnation, row, /*size=*/1, now);
  group.members[0].state = MemberState::kSealed;
  group.members[0].granted = true;
  group.state = GroupState::kInBatch;
  group.batch = k;
  return group;
}

void GroupTable::AddSecondWave(const Group& given, Instant now) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(group.state == GroupState::kOpen && group.undrawn > 0);
  const size_t first_wave = group.members.size();
  group.members.resize(first_wave + group.undrawn);
  for (size_t m = first_wave; m < group.members.size(); ++m) group.members[m].since = now;
  group.undrawn = 0;
  UpdateUnheld(group);

  // The straggler time begins anew: what was sampled already must not be lost to it.
  group.wave_began = now;
  group.overdue = false;
  overdue_.push_back({now + spec_.wait, group.id.ordinal});
}

void GroupTable::Accept(const Group& given, Instant now) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(group.state == GroupState::kOpen && group.complete() && group.undrawn == 0);
  RemoveIndexes(group);
  group.state = GroupState::kAccepted;
  group.since = now;
  group.cut_key = group.oldest();
  accepted_.insert({group.cut_key, group.id.ordinal});
}

void GroupTable::Reopen(const Group& given, Instant now) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(group.state == GroupState::kAccepted);
  accepted_.erase({group.cut_key, group.id.ordinal});
  group.state = GroupState::kOpen;
  group.since = now;
  AddIndexes(group);
}

void GroupTable::PutInBatch(const Group& given, int64_t k, Instant now) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(group.state == GroupState::kAccepted && group.slot == k);
  accepted_.erase({group.cut_key, group.id.ordinal});
  group.state = GroupState::kInBatch;
  group.since = now;
  group.batch = k;
}

void GroupTable::TakeFromBatch(const Group& given, Instant now) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(group.state == GroupState::kInBatch);
  const int64_t k = group.batch;
  group.state = GroupState::kAccepted;
  group.since = now;
  group.batch = -1;
  accepted_.insert({group.cut_key, group.id.ordinal});
  if (group.slot >= 0) return;

  group.slot = *slots_.LowestFree(k, std::numeric_limits<int64_t>::max());
  slots_.Take(group.slot, group.id.ordinal);
}

void GroupTable::Erase(const Group& given) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(std::none_of(group.members.begin(), group.members.end(),
                            [](const GroupMember& member) { return member.lease.has_value(); }));
  RemoveIndexes(group);
  accepted_.erase({group.cut_key, group.id.ordinal});
  if (group.slot >= 0) slots_.Free(group.slot, group.id.ordinal);

  stored_bytes_ -= group.stored();
  if (!spec_.rows_only) reserved_bytes_ -= spec_.group_bytes();

  const auto of_row = by_row_.find({group.row.source, group.row.index});
  of_row->second.erase(group.id.ordinal);
  if (of_row->second.empty()) by_row_.erase(of_row);
  groups_.erase(group.id.ordinal);
}

// Slots. ------------------------------------------------------------------------------------------

void GroupTable::MoveSlot(const Group& given, int64_t step) {
  Group& group = GetMutable(given);
  RemoveIndexes(group);
  slots_.Free(group.slot, group.id.ordinal);
  slots_.Take(step, group.id.ordinal);
  group.slot = step;
  AddIndexes(group);
}

void GroupTable::TakeSlotForCut(const Group& given, int64_t k) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(group.state == GroupState::kAccepted);
  if (group.slot == k) return;
  if (!slots_.full(k)) return MoveSlot(group, k);

  // The youngest open group of step k gives up its slot, because it is likely to be the last to be
  // complete. If none is open, the youngest accepted group that is not in the batch does.
  const auto runs = open_.lower_bound({k + 1, 0});
  uint64_t overtaken = 0;
  if (runs != open_.begin() && std::prev(runs)->first == k) {
    overtaken = std::prev(runs)->second;
  } else {
    const std::set<uint64_t>& holders = slots_.holders(k);
    const auto waits = std::find_if(holders.rbegin(), holders.rend(), [&](uint64_t ordinal) {
      return at(ordinal).state != GroupState::kInBatch;
    });
    SLUICE_CHECK(waits != holders.rend());
    overtaken = *waits;
  }

  // Both slots are freed before one of them is taken: a step has no slot to spare.
  Group& other = *groups_.at(overtaken);
  const int64_t mine = group.slot;
  RemoveIndexes(other);
  slots_.Free(k, other.id.ordinal);
  slots_.Free(mine, group.id.ordinal);
  slots_.Take(mine, other.id.ordinal);
  slots_.Take(k, group.id.ordinal);
  other.slot = mine;
  group.slot = k;
  AddIndexes(other);
}

void GroupTable::FreeSlot(const Group& given) {
  Group& group = GetMutable(given);
  SLUICE_CHECK(group.state == GroupState::kInBatch);
  if (group.slot >= 0) slots_.Free(group.slot, group.id.ordinal);
  group.slot = -1;
}

// Members. ----------------------------------------------------------------------------------------

bool GroupTable::GrantMember(const Group& given, uint32_t index, const Id16& lease,
                             const std::string& worker, int64_t version, Instant now) {
  Group& group = GetMutable(given);
  GroupMember& member = group.members[index];
  SLUICE_CHECK(!member.lease);
  member.lease = lease;
  member.worker = worker;
  member.since = member.progress = now;
  stalling_.insert({now + spec_.stalled_after(), {group.id.ordinal, index}});
  UpdateUnheld(group);
  if (member.granted) return false;

  member.granted = true;
  member.began = now;
  member.began_at = version;
  return true;
}

void GroupTable::ReleaseMember(const Group& given, uint32_t index, Instant now) {
  Group& group = GetMutable(given);
  GroupMember& member = group.members[index];
  SLUICE_CHECK(member.lease);
  member.lease.reset();
  member.state = MemberState::kReserved;
  member.since = now;
  ++member.attempt;
  stored_bytes_ -= member.field_bytes;
  member.fields.clear();
  member.field_bytes = 0;
  UpdateUnheld(group);
}

void GroupTable::SealMember(const Group& given, uint32_t index, Finish finish, int64_t version,
                            Instant now) {
  Group& group = GetMutable(given);
  GroupMember& member = group.members[index];
  SLUICE_CHECK(member.lease);
  member.sealed_by = member.lease;
  member.lease.reset();
  member.state = MemberState::kSealed;
  member.since = now;
  member.finish = finish;
  member.sealed_at = version;
  UpdateUnheld(group);
}

void GroupTable::DropMember(const Group& given, uint32_t index, const std::string& reason,
                            Instant now) {
  Group& group = GetMutable(given);
  GroupMember& member = group.members[index];
  SLUICE_CHECK(member.state != MemberState::kDropped);
  member.lease.reset();
  stored_bytes_ -= member.stored();
  member.log = TokenLog();
  member.fields.clear();
  member.past.clear();
  member.field_bytes = 0;
  member.state = MemberState::kDropped;
  member.since = now;
  member.drop_reason = reason;
  UpdateUnheld(group);
}

// What is stored. ---------------------------------------------------------------------------------

void GroupTable::AppendPiece(const Group& given, std::optional<uint32_t> index, StoredPiece piece,
                             Instant now) {
  Group& group = GetMutable(given);
  for (const Field& field : piece.fields) stored_bytes_ += field.bytes.size;
  if (!index) return group.prompt.Append(std::move(piece));

  GroupMember& member = group.members[*index];
  member.stalls = 0;
  if (member.state == MemberState::kReserved) member.since = now;
  member.state = MemberState::kRunning;
  if (piece.piece.role == SegmentRole::kSampled) member.generated += piece.piece.count;
  member.log.Append(std::move(piece));
}

void GroupTable::AddField(const Group& given, uint32_t whose, Field field) {
  Group& group = GetMutable(given);
  auto& fields = whose == kWholeGroup ? group.fields : group.members[whose].fields;
  uint64_t& bytes = whose == kWholeGroup ? group.field_bytes : group.members[whose].field_bytes;
  const uint64_t size = field.bytes.size;
  const std::string name = field.name;
  if (!fields.emplace(name, std::move(field)).second) return;
  bytes += size;
  stored_bytes_ += size;
}

void GroupTable::AddResult(const Group& given, uint32_t whose, Field field) {
  Group& group = GetMutable(given);
  if (whose != kWholeGroup && field.name == "task_reward") {
    double reward;
    std::memcpy(&reward, field.bytes.data.get(), sizeof(reward));
    group.members[whose].task_reward = reward;
  }
  AddField(group, whose, std::move(field));
}

void GroupTable::RetireField(const Group& given, uint32_t whose, const std::string& name) {
  Group& group = GetMutable(given);
  auto& fields = whose == kWholeGroup ? group.fields : group.members[whose].fields;
  const auto it = fields.find(name);
  if (it == fields.end()) return;

  if (whose == kWholeGroup) {
    group.field_bytes -= it->second.bytes.size;
    stored_bytes_ -= it->second.bytes.size;
  } else {
    group.members[whose].past.push_back(std::move(it->second));
    if (name == "task_reward") group.members[whose].task_reward.reset();
  }
  fields.erase(it);
}

void GroupTable::DropRetiredFields(const Group& given, uint32_t index) {
  Group& group = GetMutable(given);
  GroupMember& member = group.members[index];
  for (const Field& field : member.past) {
    member.field_bytes -= field.bytes.size;
    stored_bytes_ -= field.bytes.size;
  }
  member.past.clear();
}

void GroupTable::RemoveLostPayload(const Group& given) {
  Group& group = GetMutable(given);
  stored_bytes_ -= group.prompt.bytes() + group.field_bytes;
  group.prompt = TokenLog();
  group.fields.clear();
  group.field_bytes = 0;
}

void GroupTable::RemoveLostPayload(const Group& given, uint32_t index, Instant now) {
  Group& group = GetMutable(given);
  GroupMember& member = group.members[index];
  stored_bytes_ -= member.stored();
  member.generated = 0;
  member.log = TokenLog();
  member.fields.clear();
  member.field_bytes = 0;
  member.state = MemberState::kReserved;
  member.since = now;
  UpdateUnheld(group);
}

// Time. -------------------------------------------------------------------------------------------

void GroupTable::NoteProgress(const Group& given, uint32_t index, Instant now) {
  Group& group = GetMutable(given);
  group.members[index].progress = now;
}

void GroupTable::NoteProgressOfAll(Instant now) {
  for (const auto& [ordinal, group] : groups_) {
    for (GroupMember& member : group->members) member.progress = now;
  }
}

void GroupTable::RestartStragglerTime(const Group& given, Instant now) {
  Group& group = GetMutable(given);
  if (!group.overdue) return;
  group.overdue = false;
  overdue_.push_back({now + spec_.wait, group.id.ordinal});
}

const Group* GroupTable::NextOverdue(Instant now) {
  while (!overdue_.empty() && overdue_.front().first <= now) {
    const Group* const group = FindOrdinal(overdue_.front().second);
    overdue_.pop_front();
    if (group == nullptr || group->state != GroupState::kOpen) continue;
    // This entry is of its first wave. The second wave has an entry of its own.
    if (group->wave_began + spec_.wait > now) continue;
    GetMutable(*group).overdue = true;
    return group;
  }
  return nullptr;
}

GroupTable::MemberKey GroupTable::NextStalled(Instant now) {
  while (!stalling_.empty() && stalling_.begin()->first <= now) {
    const auto [ordinal, index] = stalling_.begin()->second;
    stalling_.erase(stalling_.begin());
    const Group* const group = FindOrdinal(ordinal);
    if (group == nullptr || !group->members[index].lease) continue;

    // The entry was made at the grant or at the last check. Progress since then defers the time.
    const Instant due = group->members[index].progress + spec_.stalled_after();
    if (due <= now) return {group, index};
    stalling_.insert({due, {ordinal, index}});
  }
  return {};
}

Instant GroupTable::NextWake() const {
  Instant next = absl::InfiniteDuration();
  if (!overdue_.empty()) next = std::min(next, overdue_.front().first);
  if (!stalling_.empty()) next = std::min(next, stalling_.begin()->first);
  return next;
}

}  // namespace sluice::queue
