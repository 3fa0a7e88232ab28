#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/judges/judge_client.h"
#include "common/plugins/plugin_host.h"
#include "common/rpc/cancel.h"
#include "common/scoring/scorer.h"
#include "services/reward/comparison.h"
#include "services/reward/metrics.h"
#include "services/reward/sandboxes.h"
#include "services/reward/shadows.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/job/v1/spec.pb.h"
#include "sluice/reward/v1/reward.pb.h"

namespace sluice::reward {

// What the rewards of one job use on this daemon: judges, plug-ins and sandboxes, and the scorer
// that is made of them.
//
// When the files of a plug-in change, its server says that it has another version, or a person asks
// for it, it is started anew beside the old one. Once its self-test has passed, the newest answers
// are scored by it too, to say how it differs, and there is a new scorer, of another generation.
// The old plug-in runs as long as its scorer is used. If the new one fails, nothing changes.
//
// Owns three threads at most: one for new versions and one that answers whoever waits too long for
// them, if the job has plug-ins, and that of Shadows. Thread-safe.
class JobRewards {
 public:
  struct Options {
    std::string job_name;
    job::v1::Reward reward;
    bool deterministic = false;                  // Then rewards never change.
    std::map<std::string, JudgeClient*> judges;  // By name; they outlive this object.
    // How plug-ins that are programs run. Null: the job has none.
    LaunchPlugin launch;
    std::string folders;                     // Of their programs, as in PluginCommandOf().
    const PluginServers* servers = nullptr;  // As in PluginHost::Options.
    Sandboxes::OfJob sandboxes;
    Metrics metrics;
    // Called on a thread of its own when a plug-in that counts cannot be started, with the reason.
    std::function<void(absl::Status why)> on_broken;
    // Called with what people should know. May be null.
    std::function<void(common::v1::Severity severity, const char* code, std::string message)>
        on_event;
    absl::Duration watch_every = absl::Seconds(2);     // How often plug-ins are looked at.
    absl::Duration decide_within = absl::Seconds(50);  // Reload() is answered by then.
    // A new version has this long to start, also while all sandboxes are taken.
    absl::Duration start_within = absl::Minutes(2);
  };
  // Begins to start the plug-ins. Errors as PluginHost::Make() and MakeScorer().
  static absl::StatusOr<std::unique_ptr<JobRewards>> Make(Options options);
  ~JobRewards();  // Calls Stop().

  const Sandboxes::OfJob& sandboxes() const { return options_.sandboxes; }
  // The scorer in use.
  std::shared_ptr<const Scorer> scorer() const;
  // How many answers are worth waiting for the judges, plug-ins and programs of the scorer in use
  // now, at most `most`. Errors as JudgeClient::CheckReady(), PluginHost::Capacity() and
  // Sandboxes::OfJob::capacity. Candidates do not count.
  absl::StatusOr<uint32_t> Capacity(uint32_t most) const;
  // Whether plug-ins of this earlier generation still run.
  bool CanScore(uint32_t generation) const;
  // Why a plug-in that counts is broken; OK if none is.
  absl::Status broken() const;

  // From now on new scorers are handed to `use`, on the thread for new versions.
  void Follow(std::function<void(std::shared_ptr<const Scorer>)> use);
  // These answers were scored by `scorer`.
  void NoteScored(std::shared_ptr<const Scorer> scorer, ScoredAnswers scored);
  // Whether NoteScored() wants answers.
  bool wants_scored() const { return shadows_ != nullptr || !entries_.empty(); }

  // Loads the plug-in of this name anew, or all if it is empty, where they have changed. `done`
  // gets the answer, or an error of RewardService.Reload, perhaps on another thread.
  using Reloaded = std::function<void(absl::StatusOr<v1::ReloadResponse>)>;
  void Reload(const std::string& reward, Reloaded done);
  // Fills in all but the earlier generations.
  void Describe(v1::DescribeResponse* out) const;

  // Ends what scores wait for. Idempotent.
  void Stop();

 private:
  using Plugins = std::map<std::string, std::shared_ptr<PluginHost>>;  // By their args.
  // The plug-ins of one generation, with its scorer, which shares them.
  struct Version {
    std::shared_ptr<const Plugins> plugins;
    std::shared_ptr<const Scorer> scorer;
  };
  // An entry of the job that a plug-in scores.
  struct Entry {
    std::string name;
    std::string key;  // Its args, as in Plugins.
    PluginSpec spec;
    bool scores_groups = false;
    bool counts = true;  // It is no candidate.
    std::string shadow;  // Name of the reward that a candidate may replace.
  };
  // A plug-in, as it was when it was last looked at.
  struct Watched {
    std::string stamp;
    bool changed = false;  // Since the look before, and its files may be written still.
  };
  struct Request {
    std::string reward;  // Empty: all.
    Reloaded done;       // Null once it was called. Guarded by mu_.
    absl::Duration deadline;
  };
  using Answer = absl::StatusOr<v1::ReloadResponse>;

  explicit JobRewards(Options options);
  absl::Status Start();
  // `again`: it is a new version, which has one try to start.
  absl::StatusOr<std::shared_ptr<PluginHost>> StartPlugin(const Entry& entry, bool again);
  absl::StatusOr<std::shared_ptr<const Scorer>> MakeScorerOf(
      const std::shared_ptr<const Plugins>& plugins) const;
  Version current() const;
  void SetVersion(Version version);
  // Answers the request, unless that was done.
  void Finish(const std::shared_ptr<Request>& request, Answer answer);
  // What its caller gets at its deadline.
  v1::ReloadResponse NotDecided(const Request& request) const;
  // Runs on a thread of its own: the one for new versions may be in the middle of one.
  void AnswerLate();

  // These run on the thread for new versions alone.
  void Run();
  // The entries whose plug-ins have changed, but not since the look before.
  std::vector<const Entry*> FindChanged();
  // Loads these entries anew where their plug-ins have changed.
  v1::ReloadResponse Load(const std::vector<const Entry*>& entries);
  // Starts a new version of the plug-in and waits until it runs. Null: it has not changed.
  // RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: it could not start now. FAILED_PRECONDITION and others:
  // it does not run.
  absl::StatusOr<std::shared_ptr<PluginHost>> StartNew(const Entry& entry, const Version& before);
  // How the scores of `candidate` by the entry differ from those that the newest answers got.
  std::string CompareWithNewest(const Scorer& candidate, const Entry& entry) const;
  // Tells people what has become of new versions. `known`: what failed in the same way before.
  void TellLoaded(const v1::ReloadResponse& response,
                  const std::map<std::string, std::string>& known) const;

  std::vector<const Entry*> FindEntries(const std::string& reward) const;
  void Tell(common::v1::Severity severity, const char* code, std::string message) const;
  void TellCompared(const Shadows::Results& results) const;

  const Options options_;
  const std::shared_ptr<rpc::Cancel> stop_ = std::make_shared<rpc::Cancel>();  // Of judges' calls.
  std::vector<Entry> entries_;              // Constant once started.
  std::unique_ptr<Shadows> shadows_;        // Constant once started. Null: there are no candidates.
  std::map<std::string, Watched> watched_;  // By key; of the thread for new versions.

  mutable Mutex mu_;
  CondVar changed_;  // For the thread for new versions: a request, or the end.
  CondVar asked_;    // For the thread that answers late: the same.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Version version_ ABSL_GUARDED_BY(mu_);  // In use.
  // All plug-ins that still run, to be stopped, and those of each generation.
  std::vector<std::weak_ptr<PluginHost>> hosts_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, std::weak_ptr<const Plugins>> generations_ ABSL_GUARDED_BY(mu_);
  std::function<void(std::shared_ptr<const Scorer>)> use_ ABSL_GUARDED_BY(mu_);
  // Why the new version of a reward is not used, by its name.
  std::map<std::string, std::string> messages_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Request>> requests_ ABSL_GUARDED_BY(mu_);    // Not begun.
  std::deque<std::shared_ptr<Request>> unanswered_ ABSL_GUARDED_BY(mu_);  // By deadline.
  std::deque<ScoredAnswers> newest_ ABSL_GUARDED_BY(mu_);
  std::thread thread_, late_thread_;
};

}  // namespace sluice::reward
