#include "common/weights/object_stage.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/shm/segment.h"

namespace sluice {

absl::StatusOr<std::vector<ObjectStage::Place>> ObjectStage::Stage(absl::string_view job,
                                                                   absl::Span<const Object> objects,
                                                                   absl::Duration now) {
  std::vector<absl::string_view> pieces;
  std::map<std::pair<std::string, std::string>, Place> fresh;
  uint64_t bytes = 0;
  for (const Object& object : objects) {
    std::pair<std::string, std::string> key(job, object.id);
    if (places_.contains(key) || fresh.contains(key)) continue;
    fresh[std::move(key)] = {next_, bytes, object.bytes->size()};
    pieces.push_back(*object.bytes);
    bytes += object.bytes->size();
  }
  if (!fresh.empty()) {
    SLUICE_ASSIGN_OR_RETURN(Fd fd, shm::Segment::MakeConstant("sluice-weights", pieces));
    segments_.emplace(next_++, Segment{std::string(job), std::move(fd), bytes, now});
    places_.merge(fresh);
  }

  std::vector<Place> places;
  for (const Object& object : objects) {
    places.push_back(places_.at({std::string(job), object.id}));
    segments_.at(places.back().segment).used = now;
  }
  return places;
}

const ObjectStage::Segment* ObjectStage::Find(absl::string_view job, uint32_t number,
                                              absl::Duration now) {
  const auto it = segments_.find(number);
  if (it == segments_.end() || it->second.job != job) return nullptr;
  it->second.used = now;
  return &it->second;
}

void ObjectStage::DropUnused(absl::Duration now) {
  const size_t before = segments_.size();
  std::erase_if(segments_, [&](const auto& segment) { return now - segment.second.used > kKeep; });
  while (segments_.size() > kMostSegments || (segments_.size() > 1 && bytes() > most_bytes_)) {
    segments_.erase(std::min_element(
        segments_.begin(), segments_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
  if (segments_.size() == before) return;
  std::erase_if(places_,
                [&](const auto& place) { return !segments_.contains(place.second.segment); });
}

uint64_t ObjectStage::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [unused, segment] : segments_) bytes += segment.bytes;
  return bytes;
}

}  // namespace sluice
