// How new versions of plug-ins are found, started, and put to use.
#include "services/reward/job_rewards.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/status_text.h"

namespace sluice::reward {
namespace {

// The newest answers are scored by a new version for so long at most.
constexpr absl::Duration kCompareTime = absl::Seconds(5);
constexpr absl::Duration kAnswer = absl::Seconds(10);  // For a server to say its version.
constexpr absl::Duration kLook = absl::Milliseconds(200);
// A new version has this long to start, also while all sandboxes are taken.
constexpr absl::Duration kGiveUp = absl::Minutes(2);

absl::Duration Now() { return Clock::Real()->Monotonic(); }

}  // namespace

std::vector<const JobRewards::Entry*> JobRewards::FindEntries(const std::string& reward) const {
  std::vector<const Entry*> found;
  for (const Entry& entry : entries_) {
    if (reward.empty() || entry.name == reward) found.push_back(&entry);
  }
  return found;
}

void JobRewards::Reload(const std::string& reward, Reloaded done) {
  if (options_.deterministic) {
    return done(ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "DETERMINISTIC", .hint = "submit another job with the new files"},
        absl::StrCat("job ", options_.job_name,
                     " is deterministic (run.deterministic), so its rewards must not change")));
  }
  if (FindEntries(reward).empty()) {
    std::set<std::string> names;
    for (const Entry& entry : entries_) names.insert(entry.name);
    return done(Error(absl::StatusCode::kNotFound, "REWARD",
                      absl::StrCat("job ", options_.job_name, " has no plug-in ",
                                   reward.empty() ? "" : absl::StrCat("\"", reward, "\" "),
                                   "among its rewards; its plug-ins are: ",
                                   names.empty() ? "none" : absl::StrJoin(names, ", "))));
  }
  {
    MutexLock lock(&mu_);
    if (!stopping_) {
      requests_.push_back(
          {.reward = reward, .done = std::move(done), .deadline = Now() + options_.decide_within});
      changed_.NotifyAll();
      return;
    }
  }
  done(absl::UnavailableError("the job ends"));
}

void JobRewards::Run() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (requests_.empty()) changed_.WaitFor(&mu_, options_.watch_every);
    if (stopping_) break;
    std::optional<Request> request;
    if (!requests_.empty()) {
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    mu_.Unlock();
    if (request) {
      v1::ReloadResponse response = Load(FindEntries(request->reward), &*request);
      if (request->done) request->done(std::move(response));
    } else if (const std::vector<const Entry*> changed = FindChanged(); !changed.empty()) {
      Load(changed, nullptr);
    }
    mu_.Lock();
  }
  const std::deque<Request> rest = std::exchange(requests_, {});
  mu_.Unlock();
  for (const Request& request : rest) request.done(absl::UnavailableError("the job ends"));
  mu_.Lock();
}

std::vector<const JobRewards::Entry*> JobRewards::FindChanged() {
  std::vector<const Entry*> found;
  std::set<std::string> keys;  // Of `found`.
  const Version version = current();
  for (const Entry& entry : entries_) {
    if (!entry.spec.reload_by_itself) continue;
    if (keys.contains(entry.key)) {
      found.push_back(&entry);
      continue;
    }
    Watched& watched = watched_[entry.key];
    const std::string stamp = version.plugins->at(entry.key)->source().Stamp();
    if (stamp != watched.stamp) {
      watched.stamp = stamp;
      watched.changed = true;
      continue;
    }
    if (!std::exchange(watched.changed, false)) continue;
    keys.insert(entry.key);
    found.push_back(&entry);
  }
  return found;
}

absl::StatusOr<std::shared_ptr<PluginHost>> JobRewards::StartNew(const Entry& entry,
                                                                 const Version& before,
                                                                 Request* request) {
  const PluginHost& running = *before.plugins->at(entry.key);
  watched_[entry.key] = {.stamp = running.source().Stamp()};
  SLUICE_ASSIGN_OR_RETURN(const std::string version, running.source().Version(kAnswer));
  if (version == running.version()) return nullptr;

  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<PluginHost> host, StartPlugin(entry, /*again=*/true));
  const absl::Duration end = Now() + kGiveUp;
  while (true) {
    const absl::Status started = host->AwaitStart(kLook);
    if (started.ok()) return host;
    if (!absl::IsDeadlineExceeded(started) || Now() >= end) return started;
    if (request == nullptr || !request->done || Now() < request->deadline) continue;

    v1::ReloadResponse late;
    late.set_generation(before.scorer->generation());
    for (const Entry* const asked : FindEntries(request->reward)) {
      v1::Reloaded& row = *late.add_rewards();
      row.set_name(asked->name);
      row.set_outcome(v1::RELOAD_OUTCOME_STARTING);
      row.set_before(before.scorer->versions().at(asked->name));
      row.set_message("it is still starting; `sluice reward show` tells what becomes of it");
    }
    std::exchange(request->done, nullptr)(std::move(late));
  }
}

v1::ReloadResponse JobRewards::Load(const std::vector<const Entry*>& entries, Request* request) {
  const Version before = current();
  auto plugins = std::make_shared<Plugins>(*before.plugins);
  std::map<std::string, absl::StatusOr<std::shared_ptr<PluginHost>>> started;  // By key.
  bool any = false;
  for (const Entry* const entry : entries) {
    if (started.contains(entry->key)) continue;
    auto host = StartNew(*entry, before, request);
    if (host.ok() && *host != nullptr) {
      (*plugins)[entry->key] = *host;
      any = true;
    }
    started.emplace(entry->key, std::move(host));
  }

  std::shared_ptr<const Scorer> scorer = before.scorer;
  absl::Status made;
  if (any) {
    absl::StatusOr<std::shared_ptr<const Scorer>> next = MakeScorerOf(plugins);
    made = next.status();
    if (next.ok()) scorer = *std::move(next);
  }

  v1::ReloadResponse response;
  for (const Entry* const entry : entries) {
    const auto& host = started.at(entry->key);
    v1::Reloaded& row = *response.add_rewards();
    row.set_name(entry->name);
    row.set_before(before.scorer->versions().at(entry->name));
    row.set_after(scorer->versions().at(entry->name));
    const absl::Status failed = host.ok() && *host == nullptr ? absl::OkStatus()
                                : host.ok()                   ? made
                                                              : host.status();
    if (!failed.ok()) {
      row.set_outcome(v1::RELOAD_OUTCOME_FAILED);
      row.set_message(StatusText(failed));
    } else if (*host == nullptr) {
      row.set_outcome(v1::RELOAD_OUTCOME_UNCHANGED);
    } else {
      row.set_outcome(v1::RELOAD_OUTCOME_LOADED);
      row.set_message(CompareWithNewest(*scorer, entry->name));
    }
  }
  response.set_generation(scorer->generation());

  {
    MutexLock lock(&mu_);
    if (stopping_) return response;
    for (const v1::Reloaded& row : response.rewards()) {
      if (row.outcome() == v1::RELOAD_OUTCOME_FAILED)
        messages_[row.name()] = absl::StrCat("the new version is not used: ", row.message());
      else messages_.erase(row.name());
    }
  }
  if (scorer != before.scorer) SetVersion({.plugins = plugins, .scorer = scorer});
  for (const v1::Reloaded& row : response.rewards()) {
    if (row.outcome() == v1::RELOAD_OUTCOME_FAILED) {
      Tell("reward_reload_failed",
           absl::StrCat("reward ", row.name(), " goes on as version ", row.before(),
                        ", and its new version is not used: ", row.message()));
    }
    if (row.outcome() == v1::RELOAD_OUTCOME_LOADED) {
      Tell("reward_reloaded",
           absl::StrCat("reward ", row.name(), " goes on as version ", row.after(), " (it was ",
                        row.before(), "), in generation ",
                        absl::Hex(response.generation(), absl::kZeroPad8), ": ", row.message()));
    }
  }
  return response;
}

std::string JobRewards::CompareWithNewest(const Scorer& candidate,
                                          const std::string& reward) const {
  std::deque<ScoredAnswers> newest;
  {
    MutexLock lock(&mu_);
    newest = newest_;
  }
  const absl::Duration end = Now() + kCompareTime;
  Comparison comparison;
  for (const ScoredAnswers& scored : newest) {
    if (Now() >= end) break;
    comparison.Add(scored, reward, candidate, reward);
  }
  return comparison.Describe();
}

}  // namespace sluice::reward
