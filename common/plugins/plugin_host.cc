#include "common/plugins/plugin_host.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/plugins/plugin_files.h"

namespace sluice {
namespace {

constexpr absl::Duration kMostBackOff = absl::Seconds(30);
constexpr int kPoison = 3;        // Processes that end on an input until it is poison.
constexpr int kMostAttempts = 8;  // Of one call, also if other inputs end the processes.
constexpr size_t kStrikesKept = 1024;
// A plug-in rests if more than a fifth of its newest results are errors, once there are so many.
constexpr size_t kNewest = 200, kFewest = 50;

absl::Duration Monotonic() { return Clock::Real()->Monotonic(); }

// The same error for each item.
std::vector<PluginResult> ErrorForAll(size_t items, std::string error, std::string reason) {
  PluginResult result;
  result.error = std::move(error);
  result.reason = std::move(reason);
  return std::vector<PluginResult>(items, result);
}

bool IsSameScore(double is, double wanted) {
  return std::abs(is - wanted) <= 1e-6 * std::max(1.0, std::abs(wanted));
}

absl::Status StartFault(absl::string_view what) {
  return Error(absl::StatusCode::kUnavailable, "PLUGIN_START", what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PluginHost>> PluginHost::Make(Options options) {
  SLUICE_ASSIGN_OR_RETURN(std::string files, PluginVersion(options.spec));
  SLUICE_ASSIGN_OR_RETURN(PluginCommand command, PluginCommandOf(options.spec, options.folders));
  return absl::WrapUnique(new PluginHost(std::move(options), std::move(command), std::move(files)));
}

PluginHost::PluginHost(Options options, PluginCommand command, std::string version)
    : options_(std::move(options)),
      command_(std::move(command)),
      version_(std::move(version)),
      slots_(static_cast<size_t>(options_.spec.processes)),
      thread_([this] { Run(); }) {}

PluginHost::~PluginHost() { Stop(); }

void PluginHost::Stop() {
  std::vector<std::shared_ptr<PluginProcess>> processes;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    processes.push_back(starting_);
    for (const Slot& slot : slots_) processes.push_back(slot.process);
  }
  changed_.NotifyAll();
  for (const auto& process : processes) {
    if (process != nullptr) process->End(absl::CancelledError("the plug-in is stopped"));
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status PluginHost::AwaitStart(absl::Duration timeout) {
  const absl::Duration deadline = Monotonic() + timeout;
  MutexLock lock(&mu_);
  while (!ever_ran_) {
    if (stopping_) return absl::CancelledError("the plug-in is stopped");
    SLUICE_RETURN_IF_ERROR(BrokenLocked());
    const absl::Duration left = deadline - Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("plug-in ", options_.spec.file, " has not started yet",
                       last_failure_.ok() ? "" : ": ", last_failure_.message()));
    }
    changed_.WaitFor(&mu_, left);
  }
  return absl::OkStatus();
}

bool PluginHost::is_over() const {
  MutexLock lock(&mu_);
  return ReasonOf(last_failure_) == "PLUGIN_CHANGED" &&
         absl::c_all_of(slots_, [](const Slot& slot) { return slot.process == nullptr; });
}

uint64_t PluginHost::starts() const {
  MutexLock lock(&mu_);
  return starts_;
}

// Starting processes. -----------------------------------------------------------------------------

void PluginHost::Run() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    Slot* next = nullptr;
    for (Slot& slot : slots_) {
      if (slot.process == nullptr && (next == nullptr || slot.next_start < next->next_start))
        next = &slot;
    }
    if (next == nullptr) {
      changed_.Wait(&mu_);
      continue;
    }
    if (const absl::Duration left = next->next_start - Monotonic(); left > absl::ZeroDuration()) {
      changed_.WaitFor(&mu_, left);
      continue;
    }

    ++starts_;
    mu_.Unlock();
    absl::StatusOr<std::shared_ptr<PluginProcess>> process = StartProcess();
    mu_.Lock();
    starting_ = nullptr;
    if (stopping_) return;
    last_failure_ = process.status();
    if (process.ok()) {
      ever_ran_ = true;
      next->process = *std::move(process);
    } else {
      const absl::Duration back_off =
          std::min(options_.first_back_off * (1 << std::min(next->failures, 20)), kMostBackOff);
      ++next->failures;
      next->next_start = Monotonic() + back_off;
      // If all sandboxes are taken, that is no fault of the plug-in.
      const bool busy = absl::IsResourceExhausted(last_failure_);
      const bool broken = !ever_ran_ && !busy && ++first_failures_ == options_.first_tries;
      const absl::Status why = last_failure_;
      mu_.Unlock();
      log::Warning("plugin_failed", {{"job_id", options_.job},
                                     {"reward", options_.name},
                                     {"next_try_in", absl::FormatDuration(back_off)},
                                     {"error", why}});
      if (broken && options_.on_broken) options_.on_broken(why);
      mu_.Lock();
    }
    changed_.NotifyAll();
  }
}

absl::StatusOr<std::shared_ptr<PluginProcess>> PluginHost::StartProcess() {
  SLUICE_RETURN_IF_ERROR(CheckFiles());
  const auto named = [this](const absl::Status& status) {
    return Annotate(status, absl::StrCat("plug-in ", options_.spec.file));
  };
  auto started = PluginProcess::Start([this] { return options_.launch(command_); },
                                      [this](absl::string_view line) { LogStderr(line); });
  if (!started.ok()) return named(started.status());
  std::shared_ptr<PluginProcess> process = *std::move(started);
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("stopped");
    starting_ = process;  // From now on Stop() ends it.
  }
  SLUICE_RETURN_IF_ERROR(named(
      process->Describe(PluginHello(options_.job, options_.spec.config), options_.start_timeout)));
  if (process->description().scores_groups && !options_.scores_groups) {
    return named(StartFault("it scores whole groups; set granularity: group of the reward"));
  }
  // It has read its files by now: they must still be those of its version.
  SLUICE_RETURN_IF_ERROR(CheckFiles());
  SLUICE_RETURN_IF_ERROR(named(RunSelfTest(*process)));
  return process;
}

absl::Status PluginHost::CheckFiles() const {
  SLUICE_ASSIGN_OR_RETURN(const std::string files, PluginVersion(options_.spec));
  if (files == version_) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kUnavailable,
      {.reason = "PLUGIN_CHANGED",
       .hint = "mend the files, or bring them back; `sluice reward reload` loads new ones"},
      absl::StrCat("the files of plug-in ", options_.spec.file,
                   " have changed since the job began, from version ", version_.substr(0, 8),
                   " to ", files.substr(0, 8),
                   ": answers of one group would be scored by two programs"));
}

absl::Status PluginHost::RunSelfTest(PluginProcess& process) const {
  for (size_t i = 0; i < process.description().self_test.size(); ++i) {
    const PluginDescription::Test& test = process.description().self_test[i];
    const auto fail = [&](const auto&... parts) {
      return StartFault(absl::StrCat("its self-test ", i + 1, " ", parts...));
    };
    const absl::StatusOr<std::vector<PluginResult>> results =
        process.Call(test.items, options_.start_timeout);
    if (!results.ok()) return fail("failed: ", results.status().message());
    for (size_t item = 0; item < results->size(); ++item) {
      const PluginResult& result = (*results)[item];
      if (!result.error.empty()) return fail("failed: ", result.error);
      if (!result.score) return fail("gave no score; wanted: ", test.scores[item]);
      if (!IsSameScore(*result.score, test.scores[item]))
        return fail("gave ", *result.score, "; wanted: ", test.scores[item]);
    }
  }
  return absl::OkStatus();
}

void PluginHost::LogStderr(absl::string_view line) {
  if (const auto count = stderr_lines_.Count(Monotonic())) {
    log::Info(
        "plugin_stderr",
        {{"job_id", options_.job}, {"reward", options_.name}, {"lines", *count}, {"last", line}});
  }
}

// Scoring. ----------------------------------------------------------------------------------------

uint32_t PluginHost::LimitOf(const Slot& slot) {
  return slot.process == nullptr ? 0 : slot.process->description().max_in_flight;
}

absl::Status PluginHost::broken() const {
  MutexLock lock(&mu_);
  return BrokenLocked();
}

absl::Status PluginHost::BrokenLocked() const {
  return !ever_ran_ && first_failures_ >= options_.first_tries ? last_failure_ : absl::OkStatus();
}

void PluginHost::CountErrors(const std::vector<PluginResult>& results) {
  MutexLock lock(&mu_);
  for (const PluginResult& result : results) {
    newest_.push_back(!result.error.empty());
    errors_ += newest_.back() ? 1 : 0;
    if (newest_.back()) last_error_ = result.error;
    if (newest_.size() <= kNewest) continue;
    errors_ -= newest_.front() ? 1 : 0;
    newest_.pop_front();
  }
  if (newest_.size() < kFewest || static_cast<size_t>(errors_) * 5 <= newest_.size()) return;
  rest_cause_ =
      absl::StrCat("plug-in ", options_.spec.file, " gave errors for ", errors_, " of its newest ",
                   newest_.size(), " answers, the last: ", last_error_);
  rest_until_ = Monotonic() + options_.error_rest;
  newest_.clear();
  errors_ = 0;
}

absl::StatusOr<uint32_t> PluginHost::Capacity() const {
  MutexLock lock(&mu_);
  if (Monotonic() < rest_until_) {
    return ErrorWith(absl::StatusCode::kUnavailable,
                     {.reason = "PLUGIN_ERRORS",
                      .hint = "mend the plug-in; `sluice reward score` runs it on a file"},
                     rest_cause_);
  }
  uint32_t calls = 0;
  for (const Slot& slot : slots_) calls += LimitOf(slot);
  if (calls > 0) return 2 * calls;
  if (last_failure_.ok()) {
    return Error(absl::StatusCode::kUnavailable, "PLUGIN_DOWN",
                 absl::StrCat("plug-in ", options_.spec.file, " is starting"));
  }
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "PLUGIN_DOWN", .hint = DetailOf(last_failure_).hint},
                   last_failure_.message());
}

absl::StatusOr<PluginHost::Slot*> PluginHost::Acquire(absl::Duration deadline, bool alone) {
  MutexLock lock(&mu_);
  while (true) {
    if (stopping_) return absl::CancelledError("the plug-in is stopped");
    Slot* best = nullptr;
    bool up = false;
    for (Slot& slot : slots_) {
      if (slot.process == nullptr) continue;
      up = true;
      // One that has ended is replaced once its last call has noticed.
      const bool free = (alone ? slot.calls == 0 : slot.calls < LimitOf(slot)) &&
                        (slot.calls == 0 || slot.process->status().ok());
      if (free && (best == nullptr || slot.calls < best->calls)) best = &slot;
    }
    if (best != nullptr) {
      best->calls += alone ? LimitOf(*best) : 1;
      return best;
    }
    const absl::Duration left = deadline - Monotonic();
    if (left > absl::ZeroDuration() && BrokenLocked().ok()) {
      changed_.WaitFor(&mu_, left);
      continue;
    }
    if (up) {
      return Error(absl::StatusCode::kResourceExhausted, "PLUGIN_BUSY",
                   absl::StrCat("no process of plug-in ", options_.spec.file, " was free in time"));
    }
    return Error(absl::StatusCode::kResourceExhausted, "PLUGIN_DOWN",
                 last_failure_.ok()
                     ? absl::StrCat("plug-in ", options_.spec.file, " has not started in time")
                     : std::string(last_failure_.message()));
  }
}

void PluginHost::Release(Slot* slot, bool alone, const absl::Status& outcome) {
  std::shared_ptr<PluginProcess> ended;  // Destroyed without the lock, because that waits.
  {
    MutexLock lock(&mu_);
    slot->calls -= alone ? LimitOf(*slot) : 1;
    if (outcome.ok()) slot->failures = 0;
    if (!outcome.ok() && !slot->process->status().ok() && slot->calls == 0) {
      ended = std::move(slot->process);
      slot->process = nullptr;
      // One that ends before its first answer may do so always.
      slot->next_start =
          Monotonic() + (slot->failures == 0 ? absl::ZeroDuration()
                                             : std::min(options_.first_back_off *
                                                            (1 << std::min(slot->failures, 20)),
                                                        kMostBackOff));
      ++slot->failures;
    }
  }
  changed_.NotifyAll();
}

int PluginHost::AddStrike(const std::vector<nlohmann::json>& items) {
  const std::string key =
      Sha256(nlohmann::json(items).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  MutexLock lock(&mu_);
  const auto [it, added] = strikes_.insert({key, 0});
  if (added) strike_order_.push_back(key);
  const int count = ++it->second;
  if (strike_order_.size() > kStrikesKept) {
    strikes_.erase(strike_order_.front());
    strike_order_.pop_front();
  }
  return count;
}

absl::StatusOr<std::vector<PluginResult>> PluginHost::Score(
    const std::vector<nlohmann::json>& items, absl::Duration timeout) {
  absl::Status last;
  bool alone = false;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    SLUICE_ASSIGN_OR_RETURN(Slot* const slot, Acquire(Monotonic() + timeout, alone));
    PluginProcess* process;
    {
      MutexLock lock(&mu_);
      process = slot->process.get();  // It stays as long as calls of it are counted.
    }
    absl::StatusOr<std::vector<PluginResult>> results = process->Call(items, timeout);
    Release(slot, alone, results.status());
    if (results.ok()) {
      CountErrors(*results);
      return results;
    }

    last = results.status();
    const std::string reason = ReasonOf(last);
    if (reason == "TOO_LARGE")
      return ErrorForAll(items.size(), std::string(last.message()), "too_large");
    if (reason != "PLUGIN_GONE" && !absl::IsCancelled(last)) {
      if (const auto count = ends_.Count(Monotonic())) {
        log::Warning("plugin_ended", {{"job_id", options_.job},
                                      {"reward", options_.name},
                                      {"count", *count},
                                      {"error", last}});
      }
      if (AddStrike(items) >= kPoison) {
        return ErrorForAll(items.size(),
                           absl::StrCat(kPoison, " processes of the plug-in ended on this answer: ",
                                        last.message()),
                           "poison");
      }
      if (absl::IsDeadlineExceeded(last)) return last;
    }
    {
      MutexLock lock(&mu_);
      if (stopping_) return absl::CancelledError("the plug-in is stopped");
    }
    alone = true;  // So that nobody else's answer ends its process again.
  }
  return last;
}

}  // namespace sluice
