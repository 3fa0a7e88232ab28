#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/fd.h"

namespace sluice {

// Copies of objects in sealed memory, which other processes of this host map. Objects that are
// asked for together come into one segment, so that there are few descriptors. Nobody is told when
// a receiver is done, so a segment is dropped when it has not been used for a while; a receiver
// that has mapped it keeps the memory. Not thread-safe.
class ObjectStage {
 public:
  // Long enough that all receivers of one host share one copy of a version.
  static constexpr absl::Duration kKeep = absl::Seconds(3);
  // Each one takes a descriptor of the process.
  static constexpr size_t kMostSegments = 128;
  // Most memory of the segments. The one that was used last is kept even if it is larger.
  static constexpr uint64_t kMostBytes = uint64_t{1} << 30;

  explicit ObjectStage(uint64_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  struct Place {
    uint32_t segment = 0;
    uint64_t offset = 0, size = 0;
  };
  struct Object {
    std::string id;
    std::shared_ptr<const std::string> bytes;
  };
  // Says where these objects of the job lie. Those that are nowhere yet are copied into a new
  // segment.
  // RESOURCE_EXHAUSTED NO_MEMORY: there is no memory, or no descriptor.
  absl::StatusOr<std::vector<Place>> Stage(absl::string_view job, absl::Span<const Object> objects,
                                           absl::Duration now);

  struct Segment {
    std::string job;
    Fd fd;
    uint64_t bytes = 0;
    absl::Duration used;  // When it was asked for last.
  };
  // Null: there is none of this number, or it belongs to another job.
  const Segment* Find(absl::string_view job, uint32_t number, absl::Duration now);

  // Drops what was not used for kKeep, and of more than kMostSegments or kMostBytes those that were
  // used least recently.
  void DropUnused(absl::Duration now);
  size_t segments() const { return segments_.size(); }
  uint64_t bytes() const;

 private:
  const uint64_t most_bytes_;
  std::map<std::pair<std::string, std::string>, Place> places_;  // By job and id.
  std::map<uint32_t, Segment> segments_;                         // By number.
  uint32_t next_ = 1;
};

}  // namespace sluice
