#include "services/trainer/core/experience_codec.h"

#include <cstring>
#include <type_traits>

namespace sluice::trainer {
namespace {

class Writer {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(static_cast<uint64_t>(values.size()));
    out_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// After a read past the end, all further values are 0 and ok() is false.
class Reader {
 public:
  explicit Reader(absl::string_view in) : in_(in) {}

  template <typename T>
  void Get(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    *value = T{};
    if (const char* from = Take(sizeof(T))) std::memcpy(value, from, sizeof(T));
  }
  template <typename T>
  void Get(std::vector<T>* values) {
    const uint64_t count = Count(sizeof(T));
    if (const char* from = Take(count * sizeof(T))) {
      values->resize(count);
      if (count > 0) std::memcpy(values->data(), from, count * sizeof(T));
    }
  }
  // Reads the number of things that follow, each of at least `bytes` bytes.
  uint64_t Count(size_t bytes) {
    uint64_t count = 0;
    Get(&count);
    if (count > in_.size() / bytes) ok_ = false;
    return ok_ ? count : 0;
  }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }

 private:
  const char* Take(size_t bytes) {
    if (!ok_ || bytes > in_.size()) {
      ok_ = false;
      return nullptr;
    }
    const char* const at = in_.data();
    in_.remove_prefix(bytes);
    return at;
  }

  absl::string_view in_;
  bool ok_ = true;
};

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
  Writer out;
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
  Reader in(bytes);
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
