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
#include "common/cores/core_share.h"
#include "common/daemon/waits.h"
#include "common/prompt/prompt.h"
#include "common/queue_client/lease_keeper.h"
#include "common/queue_client/put_stream.h"
#include "common/queue_client/queue_client.h"
#include "common/queue_client/queue_watch.h"
#include "common/rpc/cancel.h"
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

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1

namespace sluice::rollout {

// What a job asks of this daemon, read from its spec.
struct SessionSpec {
  EngineSpec engine;
  SamplingParams sampling;  // Checked at the start; each grant brings its own.
  std::string chat_template;
  std::vector<PromptRenderer::Source> sources;
  KvPolicy kv = KvPolicy::kKeep;
  bool deterministic = false;  // The engine must give the same numbers whatever the batch.
  uint32_t max_prompt = 0;     // Tokens; longer prompts are dropped.
  uint32_t group_size = 1;
  uint32_t piece = 64;  // Tokens.
  EvalSpec eval;
};

// INVALID_ARGUMENT or UNIMPLEMENTED: what the job asks for and this build lacks, by its name in the
// job file.
absl::StatusOr<SessionSpec> ReadSpec(const job::v1::JobSpec& spec, int threads);

// This daemon's work for one job, from its start to its end: makes the parts and stops them in
// order. The admitter asks for work, the step loop samples it, the streamer brings it to the queue,
// and the weight subscriber brings new weights, which are switched in between two steps.
//
// Thread-safe. Owns no thread but those of its parts: `admit`, `step`, `stream`, the queue clients'
// and the weights'.
class Session : private StepLoop::Sink {
 public:
  struct Options {
    std::string job;       // 32 hex digits.
    std::string job_name;  // For people.
    std::string worker;    // This daemon's id.
    int64_t incarnation = 0;
    std::string queue;    // HOST:PORT.
    std::string weights;  // HOST:PORT of the trainer; may be empty for now.
    // What it computes on; not null.
    std::shared_ptr<CoreShare> cores = std::make_shared<CoreShare>(1);
    uint32_t rescore_one_in = 1000;  // Sealed answers; see Rescorer.
  };
  // All from the session's threads; must not block.
  struct Handlers {
    // The queue knows that this version samples.
    std::function<void(PolicyVersion version)> serving;
    std::function<void(absl::Status why)> failed;  // The work has ended for good.
    // The engine cannot be trusted: the process should end.
    std::function<void(absl::Status why)> broken;
    // What was sampled for requests of AddApi(). May be empty.
    std::function<void(StepEvents events)> guests;
  };

  // Loads the model, which may take long. Errors are the job's or the model's.
  static absl::StatusOr<std::unique_ptr<Session>> Start(const Options& options,
                                                        const job::v1::JobSpec& spec,
                                                        const Metrics& metrics, Handlers handlers);
  ~Session();  // Stop(0).

  void SetWeightsSource(const std::string& address);
  // Whether other workers sample for the job; else an answer that the engine has no room for stays
  // here.
  void SetOthers(bool others) { streamer_->SetOthers(others); }
  // Ends the session: admits no more, waits up to `grace` for what runs, flushes what was sampled
  // and gives back the leases of the rest. Idempotent.
  void Stop(absl::Duration grace);

  // Requests beside the job's work; their ids have http::kApiRequest. What becomes of them goes to
  // Handlers::guests.
  void AddApi(std::vector<Request> requests);
  void AbortApi(const std::vector<uint64_t>& requests);
  // Answers and scores one of the job's `eval.datasets` with `version`, beside all else; see
  // Evaluations.
  absl::StatusOr<uint64_t> Evaluate(const LatestVersion& version, const std::string& dataset,
                                    Evaluations::Done done) ABSL_LOCKS_EXCLUDED(mu_);
  void CancelEvaluation(uint64_t task) ABSL_LOCKS_EXCLUDED(mu_);
  // The version that samples. Nothing: none that the trainer published is loaded yet.
  std::optional<PolicyVersion> serving() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of the weights of a version that sampled here, hex; empty: unknown, or one of long ago.
  std::string digest(PolicyVersion version) const ABSL_LOCKS_EXCLUDED(mu_);
  const PromptRenderer& renderer() const { return *renderer_; }
  const std::string& job_name() const { return options_.job_name; }

  // What the work here waits for. The queue tells of the calls parked there.
  std::vector<common::v1::WaitEdge> Explain() const;
  EngineStats stats() const { return loop_->stats(); }
  // Of the weights that sample, by the job's own rows.
  absl::Status health() const { return health_.status(); }
  // Activations whose fingerprint was not the published one.
  int64_t refused_versions() const { return refused_; }
  const Engine& engine() const { return *made_.engine; }
  const ModelConfig& model_config() const { return made_.model.config; }
  const std::string& layout_id() const { return layout_id_; }  // Of the weights, 32 bytes.
  // SHA-256 of the model's configuration and tokenizer files, and of the fingerprint of the weights
  // it started with: 32 bytes.
  const std::string& model_digest() const { return model_digest_; }

 private:
  Session(const Options& options, SessionSpec spec, MadeEngine made,
          std::unique_ptr<PromptRenderer> renderer, const Metrics& metrics, Handlers handlers);
  void Begin();

  // The step thread.
  void OnStep(StepEvents events) override;
  void OnActivation(const StagedWeights& staged, const Activation& activation) override;
  void OnBroken(absl::Status why) override;

  void OnQueueChange(const queue::v1::WatchResponse& change);
  void ReleaseLeases(const std::vector<std::string>& leases) const;
  void Fail(absl::Status why);

  const Options options_;
  const SessionSpec spec_;
  const Metrics metrics_;
  const Handlers handlers_;
  daemon::Waits waits_;
  const std::unique_ptr<PromptRenderer> renderer_;
  MadeEngine made_;
  const std::string model_digest_;
  const std::string layout_id_;

  rpc::Cancel cancel_;  // Ends all calls.
  rpc::Cancel drain_;   // Ends Admit.
  std::shared_ptr<rpc::Channel> queue_;
  std::unique_ptr<QueueClient> client_;
  std::unique_ptr<LeaseKeeper> leases_;
  std::unique_ptr<PutStream> puts_;
  std::unique_ptr<Rescorer> rescorer_;
  std::unique_ptr<Streamer> streamer_;
  std::unique_ptr<StepLoop> loop_;
  std::unique_ptr<Grants> grants_;
  std::unique_ptr<Admitter> admitter_;
  std::unique_ptr<WeightSubscriber> weights_;
  std::unique_ptr<QueueWatch> watch_;

  RowHealth health_;
  std::atomic<int64_t> refused_ = 0;
  int64_t queue_incarnation_ = 0;  // Of the watch's thread; 0: not told yet.

  mutable Mutex mu_;
  std::optional<PolicyVersion> serving_ ABSL_GUARDED_BY(mu_);  // None: no published version yet.
  // Of the last kDigests versions.
  std::map<PolicyVersion, std::string> digests_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string trainer_ ABSL_GUARDED_BY(mu_);  // HOST:PORT of who has the weights; empty: none now.
  // Null: the session has not begun, or stops.
  std::unique_ptr<Evaluations> evaluations_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rollout
