#include "common/weights/disk_worker.h"

#include <pthread.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/rpc/cancel.h"

namespace sluice {

// The thread may outlive the worker, so it touches nothing else.
struct DiskWorker::State {
  Mutex mu;
  CondVar changed;
  std::function<void()> work ABSL_GUARDED_BY(mu);  // That runs or is about to. Null: none.
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool ended ABSL_GUARDED_BY(mu) = false;  // The thread has.
};

DiskWorker::DiskWorker(const char* name) : state_(std::make_shared<State>()) {
  std::thread thread([state = state_] { RunThread(state); });
  pthread_setname_np(thread.native_handle(), name);
  thread.detach();
}

DiskWorker::~DiskWorker() {
  MutexLock lock(&state_->mu);
  state_->stopping = true;
  state_->changed.NotifyAll();
  while (!state_->work && !state_->ended) state_->changed.Wait(&state_->mu);
}

void DiskWorker::RunThread(const std::shared_ptr<State>& state) {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&state->mu);
      while (!state->stopping && !state->work) state->changed.Wait(&state->mu);
      if (state->stopping) {
        state->ended = true;
        state->changed.NotifyAll();
        return;
      }
      work = state->work;
    }
    work();
    work = nullptr;  // What it owns is freed before the next one may begin.
    MutexLock lock(&state->mu);
    state->work = nullptr;
    state->changed.NotifyAll();
  }
}

absl::Status DiskWorker::Run(std::function<void()> work, absl::Duration limit,
                             rpc::Cancel* cancel) {
  struct Cancelled {
    bool is = false;  // Guarded by State::mu.
  };
  const auto cancelled = std::make_shared<Cancelled>();
  int64_t callback = 0;
  if (cancel != nullptr) {
    callback = cancel->AddCallback([state = state_, cancelled] {
      MutexLock lock(&state->mu);
      cancelled->is = true;
      state->changed.NotifyAll();
    });
  }
  const absl::Duration until = Clock::Real()->Monotonic() + limit;
  const auto done = std::make_shared<bool>(false);  // Guarded by State::mu.
  absl::Status status;
  {
    MutexLock lock(&state_->mu);
    bool begun = false;
    while (!*done) {
      if (cancelled->is) {
        status = absl::CancelledError("cancelled");
        break;
      }
      if (!begun && !state_->work) {
        begun = true;
        state_->work = [state = state_, done, work = std::move(work)] {
          work();
          MutexLock work_done(&state->mu);
          *done = true;
        };
        state_->changed.NotifyAll();
      }
      const absl::Duration left = until - Clock::Real()->Monotonic();
      if (left <= absl::ZeroDuration()) {
        status = absl::DeadlineExceededError(
            absl::StrCat(begun ? "the disk has not answered for " : "the disk was busy for ",
                         absl::FormatDuration(limit)));
        break;
      }
      state_->changed.WaitFor(&state_->mu, left);
    }
  }
  if (cancel != nullptr) cancel->RemoveCallback(callback);
  return status;
}

}  // namespace sluice
