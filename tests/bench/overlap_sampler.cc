#include "tests/bench/overlap_sampler.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/file.h"

namespace sluice::bench {
namespace {
constexpr absl::Duration kPeriod = absl::Milliseconds(2);
// Threads may start late, so the sampler looks for them again after this many periods.
constexpr int kPeriodsPerSearch = 250;

// Returns the paths of the stat files of all threads of a kind.
std::vector<std::string> FindThreads(const OverlapSampler::Kind& kind) {
  std::vector<std::string> found;
  for (const pid_t process : kind.processes) {
    std::error_code error;
    for (const auto& entry :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"), error)) {
      const auto name = ReadFile(entry.path().string() + "/comm");
      if (name.ok() && absl::StripSuffix(*name, "\n") == kind.thread)
        found.push_back(entry.path().string() + "/stat");
    }
  }

  return found;
}

// Whether any of the threads is running or ready to run. In a stat file, the state is the letter
// after the thread's name, which stands in parentheses.
bool AnyRuns(const std::vector<std::string>& threads) {
  return std::any_of(threads.begin(), threads.end(), [](const std::string& path) {
    const auto stat = ReadFile(path);
    if (!stat.ok()) return false;
    const size_t name = stat->rfind(')');
    return name != std::string::npos && name + 2 < stat->size() && (*stat)[name + 2] == 'R';
  });
}
}  // namespace

OverlapSampler::OverlapSampler(Kind first, Kind second, std::function<bool()> active)
    : first_(std::move(first)),
      second_(std::move(second)),
      active_(std::move(active)),
      thread_([this] { Run(); }) {}

OverlapSampler::~OverlapSampler() { Stop(); }

OverlapSampler::Shares OverlapSampler::Stop() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    stopped_.NotifyAll();
  }

  if (thread_.joinable()) thread_.join();
  const double samples = static_cast<double>(std::max<uint64_t>(samples_, 1));
  return {.samples = samples_,
          .first = first_runs_ / samples,
          .second = second_runs_ / samples,
          .both = both_run_ / samples};
}

void OverlapSampler::Run() {
  std::vector<std::string> first, second;
  for (uint64_t i = 0;; ++i) {
    if (i % kPeriodsPerSearch == 0) {
      first = FindThreads(first_);
      second = FindThreads(second_);
    }

    if (active_()) {
      const bool one = AnyRuns(first), other = AnyRuns(second);
      ++samples_;
      first_runs_ += one;
      second_runs_ += other;
      both_run_ += one && other;
    }

    MutexLock lock(&mu_);
    if (!stop_) stopped_.WaitFor(&mu_, kPeriod);
    if (stop_) return;
  }
}

}  // namespace sluice::bench
