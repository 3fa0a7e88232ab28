#include "common/plugins/plugin_host.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/plugins/plugin_program.h"
#include "common/plugins/plugin_server.h"

namespace sluice {
namespace {

constexpr int kPoison = 3;        // Instances that end on an input until it is poison.
constexpr int kMostAttempts = 8;  // Of one call, also if other inputs end the instances.
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

std::string KeyOf(const std::vector<nlohmann::json>& items) {
  return Sha256(
      nlohmann::json(items).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

bool IsSameScore(double is, double wanted) {
  return std::abs(is - wanted) <= 1e-6 * std::max(1.0, std::abs(wanted));
}

// Whether a server cannot be reached, or has gone away.
bool IsAbsence(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == "PLUGIN_UNREACHABLE" || reason == "PLUGIN_GONE" || reason == "PLUGIN_DIED";
}

absl::Status StartFault(absl::string_view what) {
  return Error(absl::StatusCode::kUnavailable, "PLUGIN_START", what);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PluginHost>> PluginHost::Make(Options options) {
  const PluginSpec& spec = options.spec;
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<PluginSource> source,
      spec.kind == PluginSpec::Kind::kGrpc
          ? MakePluginServer(spec, options.job, options.servers)
          : MakePluginProgram(spec, options.job, options.launch, options.folders));
  std::string stamp = source->Stamp();
  absl::StatusOr<std::string> version =
      source->Version(options.connect_timeout, options.version_timeout);
  if (!version.ok() && !(options.optional && absl::IsUnavailable(version.status())))
    return version.status();
  return absl::WrapUnique(
      new PluginHost(std::move(options), std::move(source), std::move(stamp), std::move(version)));
}

PluginHost::PluginHost(Options options, std::unique_ptr<PluginSource> source, std::string stamp,
                       absl::StatusOr<std::string> version)
    : options_(std::move(options)),
      source_(std::move(source)),
      stamp_(std::move(stamp)),
      version_(version.value_or("")),
      slots_(static_cast<size_t>(source_->instances())),
      thread_([this] { Run(); }) {
  if (version.ok()) return;
  MutexLock lock(&mu_);
  first_failures_ = options_.first_tries;
  last_failure_ = version.status();
}

PluginHost::~PluginHost() { Stop(); }

void PluginHost::Stop() {
  std::vector<std::shared_ptr<PluginInstance>> instances;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    instances.push_back(starting_);
    for (const Slot& slot : slots_) instances.push_back(slot.instance);
  }
  changed_.NotifyAll();
  to_start_.NotifyAll();
  source_->Stop();
  for (const auto& instance : instances) {
    if (instance != nullptr) instance->End(absl::CancelledError("the plug-in is stopped"));
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
          absl::StrCat("plug-in ", source_->name(), " has not started yet",
                       last_failure_.ok() ? "" : ": ", last_failure_.message()));
    }
    changed_.WaitFor(&mu_, left);
  }
  return absl::OkStatus();
}

bool PluginHost::is_over() const {
  MutexLock lock(&mu_);
  return ReasonOf(last_failure_) == "PLUGIN_CHANGED" &&
         absl::c_all_of(slots_, [](const Slot& slot) { return slot.instance == nullptr; });
}

uint64_t PluginHost::starts() const {
  MutexLock lock(&mu_);
  return starts_;
}

// Starting instances. -----------------------------------------------------------------------------

void PluginHost::Run() {
  if (version_.empty()) return;
  MutexLock lock(&mu_);
  while (!stopping_) {
    Slot* next = nullptr;
    for (Slot& slot : slots_) {
      if (slot.instance == nullptr && (next == nullptr || slot.next_start < next->next_start))
        next = &slot;
    }
    if (next == nullptr) {
      to_start_.Wait(&mu_);
      continue;
    }
    if (const absl::Duration left = next->next_start - Monotonic(); left > absl::ZeroDuration()) {
      to_start_.WaitFor(&mu_, left);
      continue;
    }

    ++starts_;
    mu_.Unlock();
    absl::StatusOr<std::shared_ptr<PluginInstance>> instance = StartInstance();
    mu_.Lock();
    starting_ = nullptr;
    if (stopping_) return;
    last_failure_ = instance.status();
    if (instance.ok()) {
      ever_ran_ = true;
      answers_ += (*instance)->description().self_test.size();
      next->instance = *std::move(instance);
    } else {
      const absl::Duration back_off = BackOff(next->failures++);
      next->next_start = Monotonic() + back_off;
      // If all sandboxes are taken, or a server does not run yet, that is no fault of the plug-in.
      const bool absent = absl::IsResourceExhausted(last_failure_) || IsAbsence(last_failure_);
      const bool broken = !ever_ran_ && !absent && ++first_failures_ == options_.first_tries;
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

absl::Duration PluginHost::BackOff(int failures) const {
  return std::min(options_.first_back_off * (1 << std::min(failures, 20)),
                  source_->most_back_off());
}

absl::StatusOr<std::shared_ptr<PluginInstance>> PluginHost::StartInstance() {
  const auto named = [this](const absl::Status& status) {
    if (ReasonOf(status) == "PLUGIN_CHANGED") return status;  // It names the plug-in already.
    return Annotate(status, absl::StrCat("plug-in ", source_->name()));
  };
  auto started = source_->Start(version_, [this](absl::string_view line) { LogStderr(line); });
  if (!started.ok()) return named(started.status());
  std::shared_ptr<PluginInstance> instance = *std::move(started);
  {
    MutexLock lock(&mu_);
    if (stopping_) return absl::CancelledError("stopped");
    starting_ = instance;  // From now on Stop() ends it.
  }
  SLUICE_RETURN_IF_ERROR(named(instance->Describe(options_.start_timeout)));
  if (instance->description().scores_groups && !options_.scores_groups) {
    return named(StartFault("it scores whole groups; set granularity: group of the reward"));
  }
  // A program has read its files by now: they must still be those of its version.
  SLUICE_RETURN_IF_ERROR(named(source_->CheckVersion(instance->description(), version_)));
  SLUICE_RETURN_IF_ERROR(named(RunSelfTest(*instance)));
  return instance;
}

absl::Status PluginHost::RunSelfTest(PluginInstance& instance) const {
  for (size_t i = 0; i < instance.description().self_test.size(); ++i) {
    const PluginDescription::Test& test = instance.description().self_test[i];
    const auto fail = [&](const auto&... parts) {
      return StartFault(absl::StrCat("its self-test ", i + 1, " ", parts...));
    };
    const absl::StatusOr<std::vector<PluginResult>> results =
        instance.Call(test.items, options_.start_timeout);
    // A server may have gone away meanwhile, which says nothing about what it is.
    if (IsAbsence(results.status()) && is_server())
      return Annotate(results.status(), absl::StrCat("its self-test ", i + 1, " failed"));
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
  return slot.instance == nullptr ? 0 : slot.instance->description().max_in_flight;
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
      absl::StrCat("plug-in ", source_->name(), " gave errors for ", errors_, " of its newest ",
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
                 absl::StrCat("plug-in ", source_->name(), " is starting"));
  }
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "PLUGIN_DOWN", .hint = DetailOf(last_failure_).hint},
                   last_failure_.message());
}

absl::StatusOr<PluginHost::Slot*> PluginHost::Acquire(absl::Duration deadline, bool alone) {
  MutexLock lock(&mu_);
  Slot* awaited = nullptr;
  const auto leave = absl::MakeCleanup([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (awaited == nullptr) return;
    --awaited->alone_waiting;
    changed_.NotifyAll();
  });
  while (true) {
    if (stopping_) return absl::CancelledError("the plug-in is stopped");
    Slot *best = nullptr, *least = &slots_[0];
    bool up = false;
    for (Slot& slot : slots_) {
      if (slot.calls < least->calls) least = &slot;
      if (slot.instance == nullptr) continue;
      up = true;
      // One that has ended is replaced once its last call has noticed.
      const bool free =
          (alone ? slot.calls == 0 : slot.calls < LimitOf(slot) && slot.alone_waiting == 0) &&
          (slot.calls == 0 || slot.instance->status().ok());
      if (free && (best == nullptr || slot.calls < best->calls)) best = &slot;
    }
    if (best != nullptr) {
      best->calls += alone ? LimitOf(*best) : 1;
      return best;
    }
    if (alone && awaited == nullptr) {
      awaited = least;
      ++awaited->alone_waiting;
    }
    const absl::Duration left = deadline - Monotonic();
    if (left > absl::ZeroDuration() && BrokenLocked().ok()) {
      changed_.WaitFor(&mu_, left);
      continue;
    }
    if (up) {
      return Error(absl::StatusCode::kResourceExhausted, "PLUGIN_BUSY",
                   absl::StrCat("plug-in ", source_->name(), " was busy all the time"));
    }
    return Error(absl::StatusCode::kResourceExhausted, "PLUGIN_DOWN",
                 last_failure_.ok()
                     ? absl::StrCat("plug-in ", source_->name(), " has not started in time")
                     : std::string(last_failure_.message()));
  }
}

void PluginHost::Release(Slot* slot, bool alone, const absl::Status& outcome) {
  std::shared_ptr<PluginInstance> ended;  // Destroyed without the lock, because that waits.
  {
    MutexLock lock(&mu_);
    slot->calls -= alone ? LimitOf(*slot) : 1;
    if (outcome.ok()) slot->failures = 0;
    if (!outcome.ok() && !slot->instance->status().ok() && slot->calls == 0) {
      ended = std::move(slot->instance);
      slot->instance = nullptr;
      // One that ends before its first answer may do so always.
      slot->next_start =
          Monotonic() + (slot->failures == 0 ? absl::ZeroDuration() : BackOff(slot->failures));
      ++slot->failures;
      to_start_.NotifyAll();
    }
  }
  changed_.NotifyAll();
}

int PluginHost::AddStrike(const std::vector<nlohmann::json>& items, bool lost) {
  const std::string key = KeyOf(items);
  MutexLock lock(&mu_);
  const auto [it, added] = strikes_.try_emplace(key);
  if (added) strike_order_.push_back(key);
  const bool counts = !lost || it->second.answers != answers_;
  it->second.answers = answers_;
  const int count = it->second.count += counts ? 1 : 0;
  if (strike_order_.size() > kStrikesKept) {
    strikes_.erase(strike_order_.front());
    strike_order_.pop_front();
  }
  return count;
}

void PluginHost::NoteAnswered(const std::vector<nlohmann::json>& items) {
  {
    MutexLock lock(&mu_);
    ++answers_;
    if (strikes_.empty()) return;
  }
  const std::string key = KeyOf(items);
  MutexLock lock(&mu_);
  if (strikes_.erase(key) > 0) std::erase(strike_order_, key);
}

absl::StatusOr<std::vector<PluginResult>> PluginHost::Score(
    const std::vector<nlohmann::json>& items, absl::Duration timeout) {
  absl::Status last;
  bool alone = false;
  int ends = 0;  // Of its instance while it was there.
  bool struck = false;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    SLUICE_ASSIGN_OR_RETURN(Slot* const slot, Acquire(Monotonic() + timeout, alone));
    PluginInstance* instance;
    bool single;  // No other call can be in the instance.
    {
      MutexLock lock(&mu_);
      instance = slot->instance.get();  // It stays as long as calls of it are counted.
      single = alone || LimitOf(*slot) == 1;
    }
    absl::StatusOr<std::vector<PluginResult>> results = instance->Call(items, timeout);
    Release(slot, alone, results.status());
    if (results.ok()) {
      NoteAnswered(items);
      CountErrors(*results);
      return results;
    }

    last = results.status();
    const std::string reason = ReasonOf(last);
    if (reason == "TOO_LARGE" || (reason == "PLUGIN_TOO_LARGE" && single))
      return ErrorForAll(items.size(), std::string(last.message()), "too_large");
    const bool gone = reason == "PLUGIN_GONE" || absl::IsCancelled(last);
    if (!gone) {
      ++ends;
      if (const auto count = ends_.Count(Monotonic())) {
        log::Warning("plugin_ended", {{"job_id", options_.job},
                                      {"reward", options_.name},
                                      {"count", *count},
                                      {"error", last}});
      }
    }
    // Of a call without an answer in time it is known that it is to blame.
    const bool late = absl::IsDeadlineExceeded(last);
    if (!gone && (!is_server() || single || late)) {
      const int strikes = AddStrike(items, /*lost=*/absl::IsUnavailable(last));
      struck = struck || strikes > 0;
      if (strikes >= kPoison) {
        results = ErrorForAll(
            items.size(),
            absl::StrCat("the plug-in ended ", kPoison, " times on this answer: ", last.message()),
            "poison");
        CountErrors(*results);
        return results;
      }
      if (late) return last;
    }
    {
      MutexLock lock(&mu_);
      if (stopping_) return absl::CancelledError("the plug-in is stopped");
    }
    // So that nobody else's answer ends its instance again. All calls of a server's stream end with
    // it, and would be scored one by one.
    alone = alone || (is_server() ? ends > 1 : !gone || attempt > 0);
  }
  if (struck) return last;
  return Error(
      absl::StatusCode::kResourceExhausted, "PLUGIN_DOWN",
      absl::StrCat("plug-in ", source_->name(), " ended ", kMostAttempts,
                   " times for other reasons than this answer, the last: ", last.message()));
}

}  // namespace sluice
