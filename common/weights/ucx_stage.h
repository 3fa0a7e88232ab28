#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/ucx/ucx.h"

namespace sluice {

// Copies of objects in memory that others read over UCX. All who want an object read one copy. The
// memory is registered once and used again and again. It is never given back, so that a reader
// that comes too late finds other bytes and no fault.
//
// Thread-safe. Owns the thread of UcxHost, from Start() on.
class UcxStage {
 public:
  // Larger objects are not staged.
  static constexpr uint64_t kMostBytes = 16 << 20;
  // Of memory, each of kMostBytes.
  static constexpr size_t kMostSegments = 16;
  // What nobody holds is kept for this time, for others who want it too, unless all memory is used.
  static constexpr absl::Duration kKeep = absl::Seconds(3);

  explicit UcxStage(std::string devices) : devices_(std::move(devices)) {}

  // Starts UCX at the first call. Errors are those of UcxHost::Start().
  absl::Status Start() ABSL_LOCKS_EXCLUDED(mu_);

  struct Staged {
    UcxPlace place;
    std::shared_ptr<const void> hold;  // While it lives, the object stays there.
  };
  // Copies the object, unless it is here. Nullopt: it is too large, or all memory is held.
  // Start() must have succeeded.
  std::optional<Staged> Stage(absl::string_view job, const std::string& id,
                              absl::string_view object, absl::Duration now)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Segment {
    UcxHost::Memory memory;
    uint64_t used = 0;  // Bytes from the beginning that have objects.
    absl::Duration last_use;
    std::shared_ptr<const bool> hold = std::make_shared<bool>();

    bool is_held() const { return hold.use_count() > 1; }
  };
  struct Place {
    size_t segment;
    uint64_t offset;
  };
  // Finds a segment with so much room at its end. Nullopt: there is none.
  std::optional<size_t> FindRoom(uint64_t bytes, absl::Duration now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string devices_;
  Mutex mu_;
  std::unique_ptr<UcxHost> host_ ABSL_GUARDED_BY(mu_);
  std::vector<Segment> segments_ ABSL_GUARDED_BY(mu_);
  size_t open_ ABSL_GUARDED_BY(mu_) = 0;       // The segment that is being filled.
  bool is_full_ ABSL_GUARDED_BY(mu_) = false;  // There are no more segments to be had.
  std::map<std::pair<std::string, std::string>, Place> places_ ABSL_GUARDED_BY(mu_);  // Job, id.
};

}  // namespace sluice
