#include "services/trainer/one_slot_worker.h"

#include <thread>
#include <utility>

namespace sluice::trainer {

struct OneSlotWorker::Thread {
  std::thread thread;
};

OneSlotWorker::OneSlotWorker(std::function<void()> on_failure)
    : on_failure_(std::move(on_failure)), thread_(new Thread) {
  thread_->thread = std::thread([this] { Run(); });
}

OneSlotWorker::~OneSlotWorker() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  thread_->thread.join();
}

absl::Status OneSlotWorker::Put(Task task) {
  MutexLock lock(&mu_);
  AwaitIdle();
  if (!failure_.ok()) return failure_;
  waiting_ = std::move(task);
  changed_.NotifyAll();
  return absl::OkStatus();
}

void OneSlotWorker::Replace(Task task) {
  MutexLock lock(&mu_);
  // The old task is destroyed after the lock is released, because it may own a copy of a model.
  std::swap(waiting_, task);
  changed_.NotifyAll();
}

absl::Status OneSlotWorker::Flush() {
  MutexLock lock(&mu_);
  AwaitIdle();
  return failure_;
}

absl::Status OneSlotWorker::status() const {
  MutexLock lock(&mu_);
  return failure_;
}

void OneSlotWorker::AwaitIdle() {
  while (failure_.ok() && (waiting_ || busy_)) changed_.Wait(&mu_);
}

OneSlotWorker::Task OneSlotWorker::AwaitTask() {
  MutexLock lock(&mu_);
  while (!stopped_ && !waiting_) changed_.Wait(&mu_);
  if (stopped_) return nullptr;
  busy_ = true;
  return std::exchange(waiting_, nullptr);
}

void OneSlotWorker::Run() {
  while (Task task = AwaitTask()) {
    const absl::Status status = task();
    // What the task holds, such as a copy of the model, is freed before the next one is put.
    task = nullptr;

    {
      MutexLock lock(&mu_);
      failure_ = status;
      busy_ = false;
      changed_.NotifyAll();
    }
    if (status.ok()) continue;
    if (on_failure_) on_failure_();
    return;
  }
}

}  // namespace sluice::trainer
