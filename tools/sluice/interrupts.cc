#include "tools/sluice/interrupts.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "common/base/status.h"

namespace sluice::cli {
namespace {

constexpr char kSignal = 's', kLeave = 'l';
// A signal handler may make only async-signal-safe calls, so it writes to this pipe, and the thread
// reads.
int g_pipe[2];
std::atomic<bool> g_in_use = false;  // Whether there is an Interrupts, to which g_pipe belongs.

void OnSignal(int) {
  const int saved = errno;
  (void)!write(g_pipe[1], &kSignal, 1);
  errno = saved;
}

}  // namespace

Interrupts::Interrupts(std::function<void(int)> on_signal) : on_signal_(std::move(on_signal)) {
  SLUICE_CHECK(!g_in_use.exchange(true));
  SLUICE_CHECK(pipe2(g_pipe, O_CLOEXEC) == 0);
  thread_ = std::thread([this] {
    char c = 0;
    for (int count = 0; read(g_pipe[0], &c, 1) == 1 || errno == EINTR;) {
      if (c == kLeave) return;
      if (std::exchange(c, 0) == kSignal) on_signal_(++count);
    }
  });
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
}

Interrupts::~Interrupts() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  (void)!write(g_pipe[1], &kLeave, 1);
  thread_.join();
  close(g_pipe[0]);
  close(g_pipe[1]);
  g_in_use = false;
}

}  // namespace sluice::cli
