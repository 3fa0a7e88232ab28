#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/weights/disk_worker.h"
#include "common/weights/weight_folder.h"

namespace sluice {

// Keeps the folder of weights equal to what a publisher keeps. A disk that is full, slow or gone
// holds up no version for longer than `patience`, and none at all while it is still busy with an
// earlier one. Such a version is not in the folder until a later call has written what is kept
// then. One thread at a time may use it.
class WeightMirror {
 public:
  struct Options {
    absl::Duration patience = absl::Seconds(10);
    // Called by Write() when the folder begins to fall behind, with the reason, and with OK when it
    // has caught up.
    std::function<void(const absl::Status& status)> on_change;
  };
  WeightMirror(Options options, WeightFolderWriter writer);

  // Writes what `publisher` keeps now, and waits for it.
  void Write(const WeightPublisher& publisher);

 private:
  const Options options_;
  const std::shared_ptr<WeightFolderWriter> writer_;  // Used by the thread of `disk_`.
  bool behind_ = false;                               // What on_change was told last.
  bool hangs_ = false;                                // The last call has not ended in time.
  DiskWorker disk_{"sluice-mirror"};
};

}  // namespace sluice
