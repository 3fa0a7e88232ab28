#include "common/plugins/plugin_calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace sluice {
namespace {

absl::Duration TimeNow() { return Clock::Real()->Monotonic(); }

}  // namespace

absl::StatusOr<uint64_t> PluginCalls::Begin(size_t items) {
  MutexLock lock(&mu_);
  if (!ended_.ok()) return Error(absl::StatusCode::kUnavailable, "PLUGIN_GONE", ended_.message());
  pending_[next_id_].items = items;
  return next_id_++;
}

void PluginCalls::Forget(uint64_t id) {
  MutexLock lock(&mu_);
  pending_.erase(id);
}

absl::StatusOr<std::vector<PluginResult>> PluginCalls::Await(uint64_t id, absl::Duration deadline) {
  mu_.Lock();
  Pending& call = pending_.at(id);
  bool late = false;
  while (!call.done) {
    late = TimeNow() >= deadline;
    late_ = late_ || late;
    if (late) break;
    if (read_ == nullptr || reading_) {
      changed_.WaitFor(&mu_, deadline - TimeNow());
      continue;
    }
    reading_ = true;
    mu_.Unlock();
    read_(deadline);
    mu_.Lock();
    reading_ = false;
  }
  auto result = std::move(call.result);
  pending_.erase(id);
  const bool others = !pending_.empty();
  mu_.Unlock();
  if (read_ != nullptr && others) changed_.NotifyAll();  // Somebody else reads now.
  if (late) return absl::DeadlineExceededError("no answer came in time");
  return result;
}

absl::Status PluginCalls::Take(PluginAnswer answer) {
  MutexLock lock(&mu_);
  const auto it = pending_.find(answer.id);
  if (it == pending_.end() || it->second.done) {
    if (!ended_.ok() || late_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("it answered call ", answer.id, ", which was answered already or never made"));
  }
  Pending& call = it->second;
  if (answer.results.size() != call.items) {
    PluginResult wrong;
    wrong.error =
        absl::StrCat("it gave ", answer.results.size(), " results for ", call.items, " answers");
    answer.results.assign(call.items, wrong);
  }
  call.result = std::move(answer.results);
  call.done = true;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status PluginCalls::status() const {
  MutexLock lock(&mu_);
  return ended_;
}

void PluginCalls::End(absl::Status why) {
  MutexLock lock(&mu_);
  if (!ended_.ok()) return;
  ended_ = std::move(why);
  for (auto& [id, call] : pending_) {
    if (call.done) continue;
    call.result = ended_;
    call.done = true;
  }
  changed_.NotifyAll();
}

}  // namespace sluice
