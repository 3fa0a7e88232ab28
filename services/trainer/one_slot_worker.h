#pragma once

#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace sluice::trainer {

// Runs tasks one after the other on a thread of its own, with room for one task that waits. The
// first task that fails ends the work: no later task is run.
//
// Owns one thread. Thread-safe.
class OneSlotWorker {
 public:
  using Task = absl::AnyInvocable<absl::Status()>;

  // `on_failure` is called on the worker's thread after a task has failed; status() has the error
  // by then.
  explicit OneSlotWorker(std::function<void()> on_failure = nullptr);
  // Finishes the task that runs, and drops the one that waits.
  ~OneSlotWorker();
  OneSlotWorker(const OneSlotWorker&) = delete;
  OneSlotWorker& operator=(const OneSlotWorker&) = delete;

  // Waits until every earlier task is done, then hands `task` over and returns. If a task has
  // failed, its error is returned and `task` is dropped.
  absl::Status Put(Task task) ABSL_LOCKS_EXCLUDED(mu_);
  // Hands `task` over at once, in place of a task that still waits.
  void Replace(Task task) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until every task is done. The error is that of the task that failed.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // The error of the task that failed; OK as long as none has.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Thread;
  void Run();
  // Waits for a task. Returns null when the worker is to stop.
  Task AwaitTask() ABSL_LOCKS_EXCLUDED(mu_);
  void AwaitIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<void()> on_failure_;

  mutable Mutex mu_;
  CondVar changed_;
  Task waiting_ ABSL_GUARDED_BY(mu_);  // Null: nothing waits.
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Thread> thread_;
};

}  // namespace sluice::trainer
