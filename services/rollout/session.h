#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/collective/collective.h"
#include "common/cores/core_share.h"
#include "common/daemon/collective_flags.h"
#include "common/daemon/waits.h"
#include "common/prompt/prompt.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "common/queue_client/queue_watch.h"
#include "common/rpc/cancel.h"
#include "common/weights/relay.h"
#include "common/weights/subscriber.h"
#include "services/rollout/admitter.h"
#include "services/rollout/core/engine/registry.h"
#include "services/rollout/core/row_health/row_health.h"
#include "services/rollout/core/step_loop/step_loop.h"
#include "services/rollout/evaluation.h"
#include "services/rollout/grants.h"
#include "services/rollout/metrics.h"
#include "services/rollout/rescorer.h"
#include "services/rollout/streamer.h"
#include "services/rollout/version_probe.h"

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1

namespace sluice::rollout {

// What a job asks of this daemon.
struct SessionSpec {
  EngineSpec engine;
  // Checked when the session starts, so that a bad value fails early. Each grant brings the
  // parameters that are used.
  SamplingParams sampling;
  std::string chat_template;
  std::vector<PromptRenderer::Source> sources;
  KvPolicy kv = KvPolicy::kKeep;
  bool deterministic = false;  // The job needs an engine with EngineCaps::deterministic.
  uint32_t max_prompt = 0;     // In tokens; groups with longer prompts are dropped.
  uint32_t group_size = 1;
  uint32_t piece = 64;       // Tokens that are sent to the queue at once.
  bool answer_ends = false;  // See Streamer::Options.
  EvalSpec eval;
  FanOut fan_out = FanOut::kAuto;
  bool shared_memory = false;  // See WeightSubscriber::Options.
  std::string broadcast;       // weights.broadcast; empty: none.
  bool ucx = false;            // Read memory over Session::Options::ucx_devices.
  std::string weights_dir;     // weights.dir; empty: none.
  bool canary = false;         // New versions may be on trial here.
};

// Reads what concerns this daemon from a job's spec. The engine gets `threads` threads.
// INVALID_ARGUMENT or UNIMPLEMENTED: a value is wrong, or this build does not have what the job
// asks for. The message has the key's name in the job file.
absl::StatusOr<SessionSpec> ReadSpec(const job::v1::JobSpec& spec, int threads);

// This daemon's work for one job. A session makes the parts that do the work, connects them, and
// stops them in the right order. The admitter asks the queue for work, the step loop samples, and
// the streamer sends answers to the queue. The weight subscriber fetches new weights, which the
// step loop activates between two steps.
//
// Thread-safe. Owns no threads beside those of its parts: `admit`, the step thread, `stream`, those
// of the queue client's parts and of the weight subscriber, and `evaluate` while an evaluation is
// under way.
class Session : private StepLoop::Sink {
 public:
  struct Options {
    std::string job;       // 32 hex digits.
    std::string job_name;  // For logs; also the model's name in the API.
    std::string worker;    // This daemon's id.
    int64_t incarnation = 0;
    std::string queue;    // HOST:PORT.
    std::string weights;  // HOST:PORT of the trainer. Empty: unknown for now.
    // The rollouts of the job, this one included.
    std::vector<RelayMember> rollouts;
    std::vector<std::string> rewards;  // HOST:PORT of the job's reward daemons.
    JoinCollective join;               // Used by jobs whose weights are broadcast.
    daemon::CollectiveAddress ranks;   // Where the ranks of a broadcast reach this daemon.
    // The cores that it computes on; not null.
    std::shared_ptr<CoreShare> cores = std::make_shared<CoreShare>(1);
    uint32_t rescore_one_in = 1000;  // See Rescorer.
    // Over which memory of other daemons is read, or why it is not.
    absl::StatusOr<std::string> ucx_devices = absl::FailedPreconditionError("it has no devices");
  };
  // The handlers are called on threads of the session's parts, and must not block.
  struct Handlers {
    // The engine samples with `version` from now on.
    std::function<void(PolicyVersion version)> serving;
    // The session can do no more work for the job.
    std::function<void(absl::Status why)> failed;
    // The engine's state is unknown, so the process should end.
    std::function<void(absl::Status why)> broken;
    // Gets the events of requests that were added by AddGuestRequests(). May be empty if there are
    // none.
    std::function<void(StepEvents events)> guests;
  };

  // Loads the model, which may take long, and starts to work. Errors are those of the job or the
  // model.
  static absl::StatusOr<std::unique_ptr<Session>> Start(const Options& options,
                                                        const job::v1::JobSpec& spec,
                                                        const Metrics& metrics, Handlers handlers);
  ~Session();  // Calls Stop() without grace.

  // Sets the HOST:PORT of the trainer; empty: there is none for now. Must not be called after
  // Stop().
  void SetWeightsSource(const std::string& address);
  // Sets the rollouts of the job, this one included, which pass weights on to each other.
  void SetRollouts(std::vector<RelayMember> rollouts);
  // Sets the job's reward daemons (HOST:PORT), which score answers of evaluations.
  void SetRewards(std::vector<std::string> rewards);
  // What this worker serves of the job's weights.
  std::shared_ptr<WeightRelay> relay() const { return relay_; }
  // Has the engine read all its weights again between two steps; see StepLoop::CheckWeights().
  void CheckWeights(WeightsCheckDone done) { loop_->CheckWeights(std::move(done)); }
  // The job's queue has another address now.
  void MoveQueue(const std::string& address);
  // Says whether other workers sample for the job. If they do, answers for which the KV cache is
  // too small are given back, and go on there.
  void SetHasOtherWorkers(bool has_others) { streamer_->SetHasOtherWorkers(has_others); }
  // Ends the session. It admits no more work, waits up to `grace` for the running answers, sends
  // their tokens to the queue, and gives back the leases of answers that are not sealed. With a
  // `grace` of 0 it neither waits nor sends. Idempotent.
  void Stop(absl::Duration grace);

  // Adds requests that are not the job's own work: their ids are those of RequestOwner::kGuest.
  // Their events go to Handlers::guests. After Stop() they fail at once, on the calling thread.
  void AddGuestRequests(std::vector<Request> requests);
  void AbortGuestRequests(const std::vector<uint64_t>& requests);
  // Evaluates `version` on one of the job's `eval.datasets`; see Evaluations::Start().
  absl::StatusOr<uint64_t> Evaluate(const PublishedVersion& version, const std::string& dataset,
                                    Evaluations::Done done) ABSL_LOCKS_EXCLUDED(mu_);
  void CancelEvaluation(uint64_t task) ABSL_LOCKS_EXCLUDED(mu_);
  // The published version that samples. Nullopt if none is loaded yet.
  std::optional<PolicyVersion> serving() const ABSL_LOCKS_EXCLUDED(mu_);
  // The fingerprint, in hex, of a version that sampled here. Empty if the version is unknown or
  // long past.
  std::string digest(PolicyVersion version) const ABSL_LOCKS_EXCLUDED(mu_);
  const PromptRenderer& renderer() const { return *renderer_; }
  const std::string& job_name() const { return options_.job_name; }

  // What the work here waits for. It leaves out the calls that are parked in the queue, because the
  // queue reports these.
  std::vector<common::v1::WaitEdge> Explain() const;
  EngineStats stats() const { return loop_->stats(); }
  // An error if the weights in memory are damaged, until others are loaded, or if they give logits
  // that are not finite; see RowHealth.
  absl::Status health() const ABSL_LOCKS_EXCLUDED(mu_);
  // Number of versions that the engine did not activate, because their fingerprint was wrong.
  int64_t refused_versions() const { return refused_; }
  const Engine& engine() const { return *made_.engine; }
  const ModelConfig& model_config() const { return made_.model.config; }
  // Layout id of the weights, 32 bytes.
  const std::string& layout_id() const { return layout_id_; }
  // SHA-256 over the model's configuration and tokenizer files, and the fingerprint of the weights
  // that the engine started with. 32 bytes.
  const std::string& model_digest() const { return model_digest_; }

 private:
  Session(const Options& options, SessionSpec spec, MadeEngine made,
          std::unique_ptr<PromptRenderer> renderer, const Metrics& metrics, Handlers handlers);
  void StartParts();

  // These run on the step thread.
  void OnStep(StepEvents events) override;
  void OnActivation(const StagedWeights& staged, const Activation& activation) override;
  void OnDamage(const WeightDamage& damage) override;
  void OnRoom() override;
  void OnBroken(absl::Status why) override;

  void OnQueueChange(const queue::v1::WatchResponse& change);
  // What is known of the version that samples; see WeightSubscriber::Options.
  VersionHealth TrialHealth() const;
  void ReleaseLeases(const std::vector<std::string>& leases) const;
  void Fail(absl::Status why);

  const Options options_;
  const SessionSpec spec_;
  const Metrics metrics_;
  const Handlers handlers_;
  daemon::Waits waits_;
  RemoteScorer remote_scorer_;  // Outlives the evaluations.
  const std::unique_ptr<PromptRenderer> renderer_;
  MadeEngine made_;
  const std::string model_digest_;
  const std::string layout_id_;

  rpc::Cancel cancel_;                   // Ends all calls to the queue.
  rpc::Cancel drain_;                    // Ends Admit calls, and the admitter's waits.
  std::shared_ptr<rpc::Channel> queue_;  // Set by Start().
  std::unique_ptr<QueueClient> client_;
  std::unique_ptr<LeaseKeeper> leases_;
  std::unique_ptr<PutStream> puts_;
  std::unique_ptr<Rescorer> rescorer_;
  std::unique_ptr<VersionProbe> probe_;
  std::unique_ptr<Streamer> streamer_;
  std::unique_ptr<StepLoop> loop_;
  std::unique_ptr<Grants> grants_;
  std::unique_ptr<Admitter> admitter_;
  const std::shared_ptr<WeightRelay> relay_;
  std::unique_ptr<WeightSubscriber> weights_;
  std::unique_ptr<QueueWatch> watch_;

  RowHealth health_;
  std::atomic<int64_t> refused_ = 0;
  int64_t queue_incarnation_ = 0;  // Used by the watch's thread. 0: not known yet.

  mutable Mutex mu_;
  std::optional<PolicyVersion> serving_ ABSL_GUARDED_BY(mu_);
  // Fingerprints in hex, of the highest kDigests versions that sampled here.
  std::map<PolicyVersion, std::string> digests_ ABSL_GUARDED_BY(mu_);
  absl::Status damage_ ABSL_GUARDED_BY(mu_);  // OK: the weights are not known to be damaged.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string trainer_ ABSL_GUARDED_BY(mu_);  // HOST:PORT of the trainer; empty: none for now.
  // Null before StartParts() and after Stop().
  std::unique_ptr<Evaluations> evaluations_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rollout
