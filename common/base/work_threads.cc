#include "common/base/work_threads.h"

#include <algorithm>
#include <utility>

namespace sluice {

void WorkThreads::Run(std::function<void()> work) {
  MutexLock lock(&mu_);
  if (stopped_) return;
  waiting_.push_back(std::move(work));
  if (running_ + waiting_.size() > threads_.size() && threads_.size() < most_)
    threads_.emplace_back([this] { Loop(); });
  changed_.NotifyAll();
}

uint32_t WorkThreads::free() const {
  MutexLock lock(&mu_);
  return most_ - std::min<uint32_t>(most_, running_ + static_cast<uint32_t>(waiting_.size()));
}

void WorkThreads::AwaitEnd(absl::Duration timeout) {
  MutexLock lock(&mu_);
  if (!stopped_) changed_.WaitFor(&mu_, timeout);
}

void WorkThreads::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    waiting_.clear();
    threads.swap(threads_);
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

void WorkThreads::Loop() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&mu_);
      while (!stopped_ && waiting_.empty()) changed_.Wait(&mu_);
      if (stopped_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
    }
    work();
    {
      MutexLock lock(&mu_);
      --running_;
    }
    changed_.NotifyAll();
  }
}

}  // namespace sluice
