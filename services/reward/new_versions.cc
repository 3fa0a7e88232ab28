// How new versions of plug-ins are found, started, and put to use.
#include "services/reward/job_rewards.h"

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

absl::Duration Now() { return Clock::Real()->Monotonic(); }

// Whether the same version may run later: all sandboxes are taken, or a server is away.
// A server that has changed again may be what it was.
bool IsForNow(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status) ||
         reason == "PLUGIN_UNREACHABLE" || reason == "PLUGIN_CHANGED";
}

std::string NotUsed(const v1::Reloaded& row) {
  return absl::StrCat("the new version is not used: ", row.message());
}

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
      const auto request = std::make_shared<Request>(Request{
          .reward = reward, .done = std::move(done), .deadline = Now() + options_.decide_within});
      requests_.push_back(request);
      unanswered_.push_back(request);
      changed_.NotifyAll();
      asked_.NotifyAll();
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
    std::shared_ptr<Request> request;
    if (!requests_.empty()) {
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    mu_.Unlock();
    if (request != nullptr) {
      Finish(request, Load(FindEntries(request->reward)));
    } else if (const std::vector<const Entry*> changed = FindChanged(); !changed.empty()) {
      Load(changed);
    }
    mu_.Lock();
  }
  const std::deque<std::shared_ptr<Request>> rest = std::exchange(requests_, {});
  mu_.Unlock();
  for (const auto& request : rest) Finish(request, absl::UnavailableError("the job ends"));
  mu_.Lock();
}

void JobRewards::Finish(const std::shared_ptr<Request>& request, Answer answer) {
  Reloaded done;
  {
    MutexLock lock(&mu_);
    std::erase(unanswered_, request);
    done = std::exchange(request->done, nullptr);
  }
  if (done) done(std::move(answer));
}

void JobRewards::AnswerLate() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (unanswered_.empty()) {
      asked_.Wait(&mu_);
      continue;
    }
    // Each request has as long as the others, so the first has the first deadline.
    const std::shared_ptr<Request> first = unanswered_.front();
    if (const absl::Duration left = first->deadline - Now(); left > absl::ZeroDuration()) {
      asked_.WaitFor(&mu_, left);
      continue;
    }
    mu_.Unlock();
    Finish(first, NotDecided(*first));
    mu_.Lock();
  }
}

v1::ReloadResponse JobRewards::NotDecided(const Request& request) const {
  const Version version = current();
  v1::ReloadResponse late;
  late.set_generation(version.scorer->generation());
  for (const Entry* const entry : FindEntries(request.reward)) {
    v1::Reloaded& row = *late.add_rewards();
    row.set_name(entry->name);
    row.set_outcome(v1::RELOAD_OUTCOME_STARTING);
    row.set_before(version.scorer->versions().at(entry->name));
    row.set_message("it is still starting; `sluice reward show` tells what becomes of it");
  }
  return late;
}

std::vector<const JobRewards::Entry*> JobRewards::FindChanged() {
  // Whether the plug-in has changed, and not since the look before.
  const auto look = [](Watched& watched, std::string stamp) {
    if (stamp == watched.stamp) return std::exchange(watched.changed, false);
    watched.stamp = std::move(stamp);
    watched.changed = true;
    return false;
  };

  std::vector<const Entry*> found;
  std::map<std::string, bool> looked;  // By key: entries may share a plug-in.
  const Version version = current();
  for (const Entry& entry : entries_) {
    if (!entry.spec.reload_by_itself) continue;
    const auto [it, first] = looked.try_emplace(entry.key, false);
    if (first)
      it->second = look(watched_[entry.key], version.plugins->at(entry.key)->source().Stamp());
    if (it->second) found.push_back(&entry);
  }
  return found;
}

absl::StatusOr<std::shared_ptr<PluginHost>> JobRewards::StartNew(const Entry& entry,
                                                                 const Version& before) {
  const PluginHost& running = *before.plugins->at(entry.key);
  watched_[entry.key] = {.stamp = running.source().Stamp()};
  SLUICE_ASSIGN_OR_RETURN(const std::string version, running.source().Version(kAnswer, kAnswer));
  if (version == running.version()) return nullptr;

  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<PluginHost> host, StartPlugin(entry, /*again=*/true));
  SLUICE_RETURN_IF_ERROR(host->AwaitStart(options_.start_within));
  return host;
}

v1::ReloadResponse JobRewards::Load(const std::vector<const Entry*>& entries) {
  const Version before = current();
  auto plugins = std::make_shared<Plugins>(*before.plugins);
  std::map<std::string, absl::StatusOr<std::shared_ptr<PluginHost>>> started;  // By key.
  bool any = false;
  for (const Entry* const entry : entries) {
    if (started.contains(entry->key)) continue;
    auto host = StartNew(*entry, before);
    if (host.ok() && *host != nullptr) {
      (*plugins)[entry->key] = *host;
      any = true;
    }
    // The files are as good as before. FindChanged() brings them again.
    if (IsForNow(host.status())) watched_[entry->key].changed = true;
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
      if (IsForNow(failed)) {
        row.set_message(absl::StrCat(row.message(), "; ",
                                     entry->spec.reload_by_itself
                                         ? "they are tried again by themselves"
                                         : "ask for them again: sluice reward reload"));
      }
    } else if (*host == nullptr) {
      row.set_outcome(v1::RELOAD_OUTCOME_UNCHANGED);
    } else {
      row.set_outcome(v1::RELOAD_OUTCOME_LOADED);
      row.set_message(CompareWithNewest(*scorer, *entry));
    }
  }
  response.set_generation(scorer->generation());

  std::map<std::string, std::string> known;
  {
    MutexLock lock(&mu_);
    if (stopping_) return response;
    known = messages_;
    for (const v1::Reloaded& row : response.rewards()) {
      if (row.outcome() == v1::RELOAD_OUTCOME_FAILED) messages_[row.name()] = NotUsed(row);
      else messages_.erase(row.name());
    }
  }
  if (scorer != before.scorer) SetVersion({.plugins = plugins, .scorer = scorer});
  TellLoaded(response, known);
  return response;
}

void JobRewards::TellLoaded(const v1::ReloadResponse& response,
                            const std::map<std::string, std::string>& known) const {
  for (const v1::Reloaded& row : response.rewards()) {
    const auto before = known.find(row.name());
    const bool is_news = before == known.end() || before->second != NotUsed(row);
    if (row.outcome() == v1::RELOAD_OUTCOME_FAILED && is_news) {
      Tell(common::v1::SEVERITY_WARNING, "reward_reload_failed",
           absl::StrCat("reward ", row.name(), " goes on as version ", row.before(),
                        ", and its new version is not used: ", row.message()));
    }
    if (row.outcome() == v1::RELOAD_OUTCOME_LOADED) {
      Tell(common::v1::SEVERITY_INFO, "reward_reloaded",
           absl::StrCat("reward ", row.name(), " goes on as version ", row.after(), " (it was ",
                        row.before(), "), in generation ",
                        absl::Hex(response.generation(), absl::kZeroPad8), ": ", row.message()));
    }
  }
}

std::string JobRewards::CompareWithNewest(const Scorer& candidate, const Entry& entry) const {
  // Answers have no scores by candidates, but by what these may replace.
  const std::string& used = entry.counts ? entry.name : entry.shadow;
  std::deque<ScoredAnswers> newest;
  {
    MutexLock lock(&mu_);
    newest = newest_;
  }
  const absl::Duration end = Now() + kCompareTime;
  Comparison comparison;
  for (const ScoredAnswers& scored : newest) {
    if (Now() >= end) break;
    comparison.Add(scored, used, candidate, entry.name);
  }
  return absl::StrCat(entry.counts ? "" : absl::StrCat("compared with reward ", used, ", "),
                      comparison.Describe());
}

}  // namespace sluice::reward
