#include "services/reward/job_rewards.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "common/scoring/job_scorer.h"

namespace sluice::reward {
namespace {

// A new version of a plug-in is compared on so many of the newest answers. Larger answers are not
// kept.
constexpr size_t kNewestAnswers = 32, kLargestAnswer = 64 << 10;
constexpr absl::Duration kNewStart = absl::Seconds(40);        // A new version has started by then.
constexpr absl::Duration kCandidateAnswer = absl::Seconds(1);  // It may delay no job.

}  // namespace

absl::StatusOr<std::unique_ptr<JobRewards>> JobRewards::Make(Options options) {
  auto rewards = absl::WrapUnique(new JobRewards(std::move(options)));
  SLUICE_RETURN_IF_ERROR(rewards->Start());
  return rewards;
}

JobRewards::JobRewards(Options options) : options_(std::move(options)) {}

JobRewards::~JobRewards() { Stop(); }

absl::Status JobRewards::Start() {
  for (const job::v1::RewardEntry* const entry : PluginsOf(options_.reward)) {
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json args, VerifierArgs(*entry));
    SLUICE_ASSIGN_OR_RETURN(PluginSpec spec, ParsePluginSpec(args));
    entries_.push_back({.name = entry->name(),
                        .key = args.dump(),
                        .spec = std::move(spec),
                        .scores_groups = entry->granularity() == "group",
                        .counts = !entry->has_shadow(),
                        .shadow = entry->shadow()});
  }
  // If a server that the job needs is away, nothing else was started for it.
  std::vector<const Entry*> ordered;
  for (const Entry& entry : entries_) ordered.push_back(&entry);
  absl::c_stable_partition(ordered, [](const Entry* entry) {
    return entry->counts && entry->spec.kind == PluginSpec::Kind::kGrpc;
  });
  auto plugins = std::make_shared<Plugins>();
  for (const Entry* const entry : ordered) {
    std::shared_ptr<PluginHost>& plugin = (*plugins)[entry->key];
    if (plugin != nullptr) continue;
    absl::StatusOr<std::shared_ptr<PluginHost>> started = StartPlugin(*entry, /*again=*/false);
    if (!started.ok()) return Annotate(started.status(), absl::StrCat("reward ", entry->name));
    plugin = *std::move(started);
    watched_[entry->key] = {.stamp = plugin->stamp()};
  }
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const Scorer> scorer, MakeScorerOf(plugins));
  if (!scorer->shadows().empty()) shadows_ = std::make_unique<Shadows>(options_.metrics);
  SetVersion({.plugins = std::move(plugins), .scorer = std::move(scorer)});
  if (!entries_.empty() && !options_.deterministic) {
    thread_ = std::thread([this] { Run(); });
    late_thread_ = std::thread([this] { AnswerLate(); });
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<PluginHost>> JobRewards::StartPlugin(const Entry& entry,
                                                                    bool again) {
  PluginHost::Options options{.job = options_.job_name,
                              .name = entry.name,
                              .spec = entry.spec,
                              .scores_groups = entry.scores_groups,
                              .launch = options_.launch,
                              .folders = options_.folders,
                              .servers = options_.servers};
  if (again) {
    options.first_tries = 1;
    options.start_timeout = kNewStart;
  } else if (entry.counts) {
    options.on_broken = options_.on_broken;
  } else {
    options.optional = true;
    options.connect_timeout = options.version_timeout = kCandidateAnswer;
    options.on_broken = [this, name = entry.name](const absl::Status& why) {
      Tell(common::v1::SEVERITY_WARNING, "shadow_broken",
           absl::StrCat("candidate ", name, " is not compared: ", StatusText(why)));
    };
  }
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<PluginHost> host, PluginHost::Make(std::move(options)));
  if (host->version().empty()) {
    Tell(common::v1::SEVERITY_WARNING, "shadow_broken",
         absl::StrCat("candidate ", entry.name, " is not compared until plug-in ",
                      host->source().name(), " answers"));
  }

  MutexLock lock(&mu_);
  if (stopping_) return absl::CancelledError("the job's rewards are stopped");
  std::erase_if(hosts_, [](const auto& other) { return other.expired(); });
  hosts_.push_back(host);
  return host;
}

absl::StatusOr<std::shared_ptr<const Scorer>> JobRewards::MakeScorerOf(
    const std::shared_ptr<const Plugins>& plugins) const {
  ScorerServices services;
  for (const std::string& judge : JudgesOf(WithoutShadows(options_.reward)))
    absl::StrAppend(&services.judges, options_.judges.at(judge)->Identity(), "\n");
  services.ask_judge = [judges = options_.judges, stop = stop_](
                           const std::string& judge, const std::string& system,
                           const std::string& user, absl::Duration timeout) {
    return judges.at(judge)->Ask(system, user, timeout, *stop);
  };
  for (const auto& [args, plugin] : *plugins) services.plugins[args] = plugin->version();
  services.run_plugin = [plugins](const std::string& args, const std::vector<nlohmann::json>& items,
                                  absl::Duration timeout) {
    return plugins->at(args)->Score(items, timeout);
  };
  services.run_code = options_.sandboxes.run;
  services.toolchains = options_.sandboxes.toolchains;
  SLUICE_ASSIGN_OR_RETURN(Scorer scorer, MakeScorer(options_.reward, services));
  return std::make_shared<const Scorer>(std::move(scorer));
}

// What is in use. ---------------------------------------------------------------------------------

JobRewards::Version JobRewards::current() const {
  MutexLock lock(&mu_);
  return version_;
}

std::shared_ptr<const Scorer> JobRewards::scorer() const { return current().scorer; }

void JobRewards::SetVersion(Version version) {
  Version replaced;  // Its plug-ins may end with it, which waits, so without the lock.
  std::function<void(std::shared_ptr<const Scorer>)> use;
  {
    MutexLock lock(&mu_);
    std::erase_if(generations_, [](const auto& other) { return other.second.expired(); });
    generations_[version.scorer->generation()] = version.plugins;
    replaced = std::exchange(version_, version);
    use = use_;
  }
  if (shadows_ != nullptr) TellCompared(shadows_->Use(*version.scorer));
  if (use) use(version.scorer);
}

void JobRewards::Follow(std::function<void(std::shared_ptr<const Scorer>)> use) {
  {
    MutexLock lock(&mu_);
    use_ = use;
  }
  // Another one may come meanwhile, and be handed over before this one is.
  std::shared_ptr<const Scorer> used;
  do {
    used = scorer();
    use(used);
  } while (used != scorer());
}

absl::StatusOr<uint32_t> JobRewards::Capacity(uint32_t most) const {
  if (options_.sandboxes.capacity != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t capacity, options_.sandboxes.capacity());
    most = std::min(most, capacity);
  }
  const Version version = current();
  for (const Entry& entry : entries_) {
    if (!entry.counts) continue;
    SLUICE_ASSIGN_OR_RETURN(const uint32_t capacity, version.plugins->at(entry.key)->Capacity());
    most = std::min(most, capacity);
  }
  for (const std::string& name : JudgesOf(WithoutShadows(options_.reward))) {
    const JudgeClient& judge = *options_.judges.at(name);
    SLUICE_RETURN_IF_ERROR(judge.CheckReady());
    most = std::min(most, judge.Capacity());
  }
  return most;
}

bool JobRewards::CanScore(uint32_t generation) const {
  std::shared_ptr<const Plugins> plugins;
  {
    MutexLock lock(&mu_);
    const auto it = generations_.find(generation);
    if (it != generations_.end()) plugins = it->second.lock();
  }
  return plugins == nullptr || std::none_of(entries_.begin(), entries_.end(), [&](const auto& e) {
           return e.counts && plugins->at(e.key)->is_over();
         });
}

absl::Status JobRewards::broken() const {
  const Version version = current();
  for (const Entry& entry : entries_) {
    if (entry.counts) SLUICE_RETURN_IF_ERROR(version.plugins->at(entry.key)->broken());
  }
  return absl::OkStatus();
}

void JobRewards::NoteScored(std::shared_ptr<const Scorer> scorer, ScoredAnswers scored) {
  if (!entries_.empty() && scored.bytes() <= kLargestAnswer) {
    MutexLock lock(&mu_);
    newest_.push_back(scored);
    size_t answers = 0;
    for (const ScoredAnswers& other : newest_) answers += other.answers.size();
    while (newest_.size() > 1 && answers - newest_.front().answers.size() >= kNewestAnswers) {
      answers -= newest_.front().answers.size();
      newest_.pop_front();
    }
  }
  if (shadows_ != nullptr) shadows_->Add(std::move(scorer), std::move(scored));
}

void JobRewards::Describe(v1::DescribeResponse* out) const {
  const Version version = current();
  const Shadows::Results shadows = shadows_ == nullptr ? Shadows::Results() : shadows_->results();
  out->set_generation(version.scorer->generation());
  MutexLock lock(&mu_);
  for (const job::v1::RewardEntry& entry : options_.reward.rewards()) {
    v1::Reward& reward = *out->add_rewards();
    reward.set_name(entry.name());
    reward.set_verifier(entry.verifier());
    reward.set_version(version.scorer->versions().at(entry.name()));
    if (const auto it = messages_.find(entry.name()); it != messages_.end())
      reward.set_message(it->second);
    if (!entry.has_shadow()) continue;

    v1::Shadow& shadow = *reward.mutable_shadow();
    shadow.set_of(entry.shadow());
    const auto result = shadows.find(entry.name());
    if (result == shadows.end()) continue;
    const Comparison& comparison = result->second.comparison;
    shadow.set_equal(comparison.equal);
    shadow.set_higher(comparison.higher);
    shadow.set_lower(comparison.lower);
    shadow.set_unscorable(comparison.unscorable);
    shadow.set_skipped(result->second.skipped);
    shadow.set_difference(comparison.difference);
    shadow.set_distance(comparison.distance);
    shadow.set_same_steps(comparison.same_steps);
    shadow.set_other_values(comparison.other_values);
    shadow.set_other_places(comparison.other_places);
    shadow.set_step_distance(comparison.step_distance);
    *shadow.mutable_since() = rpc::ToProto(result->second.since);
  }
}

void JobRewards::Stop() {
  std::vector<std::weak_ptr<PluginHost>> hosts;
  bool first = false;
  {
    MutexLock lock(&mu_);
    first = !std::exchange(stopping_, true);
    hosts = hosts_;
  }
  changed_.NotifyAll();
  asked_.NotifyAll();
  stop_->Trigger();
  for (const std::weak_ptr<PluginHost>& host : hosts) {
    if (const std::shared_ptr<PluginHost> running = host.lock()) running->Stop();
  }
  options_.sandboxes.Stop();
  if (thread_.joinable()) thread_.join();
  if (late_thread_.joinable()) late_thread_.join();
  if (shadows_ == nullptr || !first) return;
  shadows_->Stop();
  TellCompared(shadows_->results());
}

// The counts end, so the job's events keep them.
void JobRewards::TellCompared(const Shadows::Results& results) const {
  for (const auto& [name, result] : results) {
    if (result.comparison.both() + result.comparison.unscorable == 0) continue;
    Tell(common::v1::SEVERITY_INFO, "shadow_compared",
         absl::StrCat("candidate ", name, " of reward ", result.of, ": ",
                      result.comparison.Describe()));
  }
}

void JobRewards::Tell(common::v1::Severity severity, const char* code, std::string message) const {
  log::Write(severity == common::v1::SEVERITY_INFO ? log::Level::kInfo : log::Level::kWarning, code,
             {{"job_id", options_.job_name}, {"message", message}});
  if (options_.on_event) options_.on_event(severity, code, std::move(message));
}

}  // namespace sluice::reward
