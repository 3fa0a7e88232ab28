#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/weights/weight_folder.h"

namespace sluice {

// Keeps the folder of weights equal to what a publisher keeps, on a thread of its own. A disk that
// is full, slow or gone holds up one version for `patience`, and those after it not at all, until
// the folder has caught up. Of the versions that came meanwhile only the newest is written.
//
// One thread at a time may use it.
class WeightMirror {
 public:
  struct Options {
    // How long Write() waits for the folder, and how long the end of the mirror does.
    absl::Duration patience = absl::Seconds(10);
    // How long after a failure the newest version is tried again.
    absl::Duration retry = absl::Seconds(5);
    // Called when the folder falls behind, with the reason, and with OK when it has caught up, by
    // Write() or by the mirror's thread, but never by both at once. It must not call the mirror.
    std::function<void(const absl::Status& status)> on_change;
  };
  WeightMirror(Options options, WeightFolderWriter writer);
  // Gives the newest version a last chance to be written. The thread is left behind if it hangs.
  ~WeightMirror();
  WeightMirror(const WeightMirror&) = delete;
  WeightMirror& operator=(const WeightMirror&) = delete;

  // Has what `publisher` keeps now written, and waits for it unless the folder is behind.
  void Write(const WeightPublisher& publisher);

 private:
  struct State;
  static void RunThread(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace sluice
