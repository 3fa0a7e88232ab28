#include "common/weights/ucx_stage.h"

#include <cstring>

#include "common/base/status.h"
#include "common/log/log.h"

namespace sluice {
namespace {

// Objects begin at cache lines.
constexpr uint64_t kLine = 64;

}  // namespace

absl::Status UcxStage::Start() {
  MutexLock lock(&mu_);
  if (host_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(host_, UcxHost::Start(devices_));
  }
  return absl::OkStatus();
}

std::optional<UcxStage::Staged> UcxStage::Stage(absl::string_view job, const std::string& id,
                                                absl::string_view object, absl::Duration now) {
  if (object.empty() || object.size() > kMostBytes) return std::nullopt;
  const std::pair<std::string, std::string> key(job, id);
  MutexLock lock(&mu_);
  auto it = places_.find(key);
  if (it == places_.end()) {
    const std::optional<size_t> room = FindRoom(object.size(), now);
    if (!room.has_value()) return std::nullopt;
    Segment& segment = segments_[*room];
    it = places_.emplace(key, Place{*room, segment.used}).first;
    std::memcpy(segment.memory.data + segment.used, object.data(), object.size());
    segment.used += (object.size() + kLine - 1) / kLine * kLine;
  }

  Segment& segment = segments_[it->second.segment];
  segment.last_use = now;
  return Staged{
      .place = {.worker = host_->worker(),
                .key = segment.memory.key,
                .address = reinterpret_cast<uintptr_t>(segment.memory.data) + it->second.offset,
                .bytes = object.size()},
      .hold = segment.hold};
}

std::optional<size_t> UcxStage::FindRoom(uint64_t bytes, absl::Duration now) {
  if (!segments_.empty() && segments_[open_].used + bytes <= kMostBytes) return open_;
  std::optional<size_t> oldest;  // Of those that nobody holds.
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].is_held()) continue;
    if (!oldest || segments_[i].last_use < segments_[*oldest].last_use) oldest = i;
  }

  const bool is_old = oldest.has_value() && now - segments_[*oldest].last_use > kKeep;
  if (!is_old && !is_full_) {
    absl::StatusOr<UcxHost::Memory> memory = host_->Allocate(kMostBytes);
    if (memory.ok()) segments_.push_back({.memory = *std::move(memory)});
    else
      log::Warning("weights_ucx_memory",
                   {{"segments", segments_.size()}, {"error", memory.status()}});
    is_full_ = !memory.ok() || segments_.size() == kMostSegments;
    if (memory.ok()) return open_ = segments_.size() - 1;
  }
  if (!oldest.has_value()) return std::nullopt;
  std::erase_if(places_, [&](const auto& place) { return place.second.segment == *oldest; });
  segments_[*oldest].used = 0;
  return open_ = *oldest;
}

}  // namespace sluice
