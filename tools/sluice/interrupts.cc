#include "tools/sluice/interrupts.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace sluice::cli {
namespace {

constexpr int kLeave = SIGUSR2;  // Sent to the thread alone, to end it.

sigset_t Taken() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, kLeave}) sigaddset(&set, signal);
  return set;
}

}  // namespace

Interrupts::Interrupts(std::function<void(int)> on_signal) : on_signal_(std::move(on_signal)) {
  const sigset_t set = Taken();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] {
    const sigset_t waited = Taken();
    for (int count = 1;; ++count) {
      int signal = 0;
      sigwait(&waited, &signal);
      if (signal == kLeave) return;
      on_signal_(count);
    }
  });
}

Interrupts::~Interrupts() {
  pthread_kill(thread_.native_handle(), kLeave);
  thread_.join();
  const sigset_t set = Taken();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace sluice::cli
