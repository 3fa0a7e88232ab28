#include "services/controller/pool.h"

#include <utility>

#include "common/base/trace.h"

namespace sluice::controller {

Pool::Pool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { RunTasks(); });
}

Pool::~Pool() { Stop(); }

void Pool::Run(std::function<void()> task) {
  {
    MutexLock lock(&mu_);
    if (!stopping_) {
      tasks_.push_back([trace = CurrentTrace(), task = std::move(task)] {
        const TraceScope scope(trace);
        task();
      });
      changed_.NotifyOne();
      return;
    }
  }
  task();
}

void Pool::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Pool::RunTasks() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) changed_.Wait(&mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace sluice::controller
