#include "common/weights/weight_mirror.h"

#include <pthread.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace sluice {

// The thread may outlive the mirror, so it touches nothing else.
struct WeightMirror::State {
  State(Options options, WeightFolderWriter writer)
      : options(std::move(options)), writer(std::move(writer)) {}

  const Options options;
  WeightFolderWriter writer;  // Used by the thread.

  Mutex mu;
  CondVar changed;
  // What is not in the folder, and from when on the thread may write it.
  std::optional<WeightPublisher::Snapshot> next ABSL_GUARDED_BY(mu);
  absl::Duration not_before ABSL_GUARDED_BY(mu);
  bool writing ABSL_GUARDED_BY(mu) = false;
  bool behind ABSL_GUARDED_BY(mu) = false;  // What on_change was told last.
  bool ending ABSL_GUARDED_BY(mu) = false;  // All is tried at once, and nothing again.
  bool ended ABSL_GUARDED_BY(mu) = false;   // The mirror is gone.

  void SetBehind(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const bool was_behind = std::exchange(behind, !status.ok());
    if (was_behind != behind && !ended && options.on_change) options.on_change(status);
  }
  // Waits until nothing is left to write or, if `unless_behind`, the folder is behind. False: that
  // takes longer than the patience.
  bool AwaitWritten(bool unless_behind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const absl::Duration until = Clock::Real()->Monotonic() + options.patience;
    while ((next.has_value() || writing) && !(unless_behind && behind)) {
      const absl::Duration left = until - Clock::Real()->Monotonic();
      if (left <= absl::ZeroDuration()) return false;
      changed.WaitFor(&mu, left);
    }
    return true;
  }
};

WeightMirror::WeightMirror(Options options, WeightFolderWriter writer)
    : state_(std::make_shared<State>(std::move(options), std::move(writer))) {
  std::thread thread([state = state_] { RunThread(state); });
  pthread_setname_np(thread.native_handle(), "sluice-mirror");
  thread.detach();
}

WeightMirror::~WeightMirror() {
  MutexLock lock(&state_->mu);
  state_->ending = true;
  state_->changed.NotifyAll();
  state_->AwaitWritten(/*unless_behind=*/false);
  state_->ended = true;
  state_->changed.NotifyAll();
}

void WeightMirror::Write(const WeightPublisher& publisher) {
  std::optional<WeightPublisher::Snapshot> kept = publisher.TakeSnapshot();
  if (!kept.has_value()) return;
  MutexLock lock(&state_->mu);
  state_->next = std::move(kept);
  state_->not_before = absl::ZeroDuration();
  state_->changed.NotifyAll();
  if (state_->AwaitWritten(/*unless_behind=*/true)) return;
  state_->SetBehind(absl::DeadlineExceededError(absl::StrCat(
      "the disk has not answered for ", absl::FormatDuration(state_->options.patience))));
}

void WeightMirror::RunThread(const std::shared_ptr<State>& state) {
  while (true) {
    std::optional<WeightPublisher::Snapshot> kept;
    {
      MutexLock lock(&state->mu);
      while (true) {
        if (state->ended) return;
        if (!state->next.has_value()) {
          state->changed.Wait(&state->mu);
          continue;
        }
        const absl::Duration wait = state->not_before - Clock::Real()->Monotonic();
        if (wait <= absl::ZeroDuration() || state->ending) break;
        state->changed.WaitFor(&state->mu, wait);
      }
      kept = std::exchange(state->next, std::nullopt);
      state->writing = true;
    }
    const absl::Status written = state->writer.Write(*kept);

    MutexLock lock(&state->mu);
    state->writing = false;
    const bool is_newest = !state->next.has_value();
    // If a newer version has come meanwhile, its own end tells whether the folder has caught up.
    if (is_newest || !written.ok()) state->SetBehind(written);
    // A newer trainer that writes to the folder does so for ever (ABORTED).
    if (is_newest && !written.ok() && !absl::IsAborted(written) && !state->ending) {
      state->next = std::move(kept);
      state->not_before = Clock::Real()->Monotonic() + state->options.retry;
    }
    state->changed.NotifyAll();
  }
}

}  // namespace sluice
