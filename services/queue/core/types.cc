#include "services/queue/core/types.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/digest.h"

namespace sluice::queue {

Id16 GroupId::id() const {
  Id16 id;
  for (int i = 0; i < 4; ++i) id.bytes[i] = static_cast<uint8_t>(incarnation >> (24 - 8 * i));
  for (int i = 0; i < 8; ++i) id.bytes[8 + i] = static_cast<uint8_t>(ordinal >> (56 - 8 * i));
  return id;
}

GroupId GroupId::From(const Id16& id) {
  GroupId group;
  for (int i = 0; i < 4; ++i) group.incarnation = group.incarnation << 8 | id.bytes[i];
  for (int i = 0; i < 8; ++i) group.ordinal = group.ordinal << 8 | id.bytes[8 + i];
  return group;
}

std::string GroupId::brief() const { return absl::StrFormat("%x:%02x", incarnation, ordinal); }

std::string GenerationName(uint32_t generation) { return absl::StrFormat("%08x", generation); }

std::string TrajectoryRef::str() const {
  return member ? absl::StrCat(group.hex(), "/", *member, "/", attempt) : group.hex();
}

Bytes Bytes::Copy(absl::string_view text) {
  std::shared_ptr<char> data(new char[text.size()], std::default_delete<char[]>());
  std::memcpy(data.get(), text.data(), text.size());
  return {data, text.size(), Crc32c(text)};
}

uint32_t Spec::slots_per_step() const {
  return static_cast<uint32_t>(std::ceil(groups_per_step * (1 + oversample) - 1e-9));
}

bool Spec::has_task(Granularity granularity) const {
  return std::any_of(tasks.begin(), tasks.end(),
                     [&](const TaskSpec& task) { return task.granularity == granularity; });
}

int64_t Ledger::dropped_total() const {
  int64_t total = 0;
  for (const auto& [reason, count] : dropped) total += count;
  return total;
}

bool IsDropReason(absl::string_view reason) {
  return std::any_of(kDropReasons.begin(), kDropReasons.end(),
                     [&](const char* known) { return reason == known; });
}

bool IsReissued(absl::string_view reason) {
  return reason == "straggler" || reason == "lost" || reason == "env_lost" ||
         reason == "nonfinite" || reason == "unscorable";
}

}  // namespace sluice::queue
