#include "common/models/worker_pool.h"

#include <pthread.h>

namespace sluice {

WorkerPool::WorkerPool(int helpers) {
  for (int i = 1; i <= helpers; ++i) {
    helpers_.emplace_back([this, i] { Help(i); });
    pthread_setname_np(helpers_.back().native_handle(), "sluice-decode");
  }
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  started_.NotifyAll();
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerPool::Run(const std::function<void(int)>& work) {
  if (helpers_.empty()) return work(0);
  {
    MutexLock lock(&mu_);
    work_ = &work;
    busy_ = static_cast<int>(helpers_.size());
    ++round_;
  }
  started_.NotifyAll();
  work(0);
  MutexLock lock(&mu_);
  while (busy_ > 0) finished_.Wait(&mu_);
}

void WorkerPool::Help(int index) {
  uint64_t seen = 0;
  while (true) {
    const std::function<void(int)>* work;
    {
      MutexLock lock(&mu_);
      while (!stop_ && round_ == seen) started_.Wait(&mu_);
      if (stop_) return;
      seen = round_;
      work = work_;
    }
    (*work)(index);
    MutexLock lock(&mu_);
    if (--busy_ == 0) finished_.NotifyOne();
  }
}

}  // namespace sluice
