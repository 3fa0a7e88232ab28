#include "services/trainer/core/experience_codec.h"

#include "services/trainer/core/byte_codec.h"

namespace sluice::trainer {
namespace {

// Calls `each` with every field of a trajectory, in one order for both directions.
// It does not compile if there are others than these.
template <typename T, typename Each>
void ForEachField(T& trajectory, Each each) {
  auto& [member, attempt, crc32c, tokens, mask, logprobs, versions, routing, masked, turns, reward,
         token_rewards, truncated, kl, values] = trajectory;
  const auto visit = [&](auto&... fields) { (each(fields), ...); };
  visit(member, attempt, crc32c, tokens, mask, logprobs, versions, routing, masked, turns, reward,
        token_rewards, truncated, kl, values);
}

}  // namespace

std::string EncodeGroups(absl::Span<const Group> groups) {
  ByteWriter out;
  out.Put(static_cast<uint64_t>(groups.size()));
  for (const Group& group : groups) {
    out.Put(group.id);
    out.Put(group.pool);
    out.Put(static_cast<uint64_t>(group.members.size()));
    for (const Trajectory& trajectory : group.members)
      ForEachField(trajectory, [&](const auto& field) { out.Put(field); });
  }
  return out.Take();
}

absl::StatusOr<std::vector<Group>> DecodeGroups(absl::string_view bytes) {
  ByteReader in(bytes);
  std::vector<Group> groups(in.Count(sizeof(Id16)));
  for (Group& group : groups) {
    in.Get(&group.id);
    in.Get(&group.pool);
    group.members.resize(in.Count(sizeof(uint64_t)));
    for (Trajectory& trajectory : group.members)
      ForEachField(trajectory, [&](auto& field) { in.Get(&field); });
    if (!in.ok()) break;
  }
  if (!in.done()) return absl::InvalidArgumentError("groups of experience cannot be read");
  return groups;
}

}  // namespace sluice::trainer
