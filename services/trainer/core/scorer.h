#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/trainer/core/experience.h"
#include "services/trainer/core/micro_batch.h"
#include "services/trainer/core/ranks.h"
#include "services/trainer/core/rules.h"
#include "services/trainer/core/settings.h"
#include "services/trainer/core/version_history.h"

namespace sluice {
class TrainModel;
struct TeacherRows;
}  // namespace sluice

namespace sluice::trainer {

// The models of a job. All but the first are frozen, and null if the job has none.
struct Models {
  TrainModel* policy = nullptr;
  TrainModel* reference = nullptr;  // The initial weights.
  TrainModel* average = nullptr;    // The averaged weights of prox ewma.
  TrainModel* teacher = nullptr;
  TrainModel* past = nullptr;  // Gets the weights of older versions, one after the other.
};

// Computes what a step needs to know before its gradients: log-probs under the proximal policy, the
// reference policy and the teacher, and what depends on log-probs of all tokens of an update. No
// pass of it has gradients. Not thread-safe.
class Scorer {
 public:
  // All arguments outlive the scorer.
  Scorer(const Settings& settings, const Rules& rules, const Models& models, Ranks* ranks)
      : settings_(settings), rules_(rules), models_(models), ranks_(ranks) {}

  // Sets batch.prox if the proximal policy has a forward pass of its own.
  absl::Status SetProximal(MicroBatch& batch);
  // Sets batch.older of all batches of step k, if prox is exact: one pass for each version that has
  // sampled tokens of them. Tokens of versions that `history` does not have are left out.
  absl::Status SetOlder(absl::Span<MicroBatch* const> batches, int64_t k,
                        const VersionHistory& history);
  // Sets batch.ref if the loss has a KL term, or compares pairs of answers.
  absl::Status SetReference(MicroBatch& batch);
  // Sets batch.teacher if the advantages get a part from the teacher.
  absl::Status SetTeacher(MicroBatch& batch);
  // Returns the teacher's distributions, if they are a term of the loss.
  absl::StatusOr<std::optional<TeacherRows>> ComputeTeacherRows(MicroBatch& batch);
  // Returns the log-probs [N] of the policy as it is now.
  absl::StatusOr<std::vector<float>> Logprobs(const MicroBatch& batch);

  // Sets Trajectory::kl of all trajectories with trained tokens, if the KL enters the reward. The
  // ranks share the work, and each then has all of it. The KL's anchor is the proximal policy, or
  // the behaviour policy if there is none (prox none) or if it is not known before the gradients
  // (prox loglinear).
  absl::Status SetRewardKl(std::vector<Group>& groups);

  // Multiplies the advantages by the factors of the loss's entropy term, and sets
  // MicroBatch::allowed by M2PO, if the loss has them. `batches` are all those that this rank has
  // of one update, which starts from the weights as they are now.
  absl::Status ApplyUpdateWideTerms(std::vector<MicroBatch>& batches);

  // Sets the weights of the experts and the factor of MicroBatch::balance, if the loss has that
  // term. `batches` are all those that this rank has of one update, which starts from the weights
  // as they are now, and whose terms are multiplied by `step_scale` in the end.
  //
  // The term is that of the Switch Transformer (arXiv:2101.03961, equations 4 to 6) and of
  // transformers' load_balancing_loss_func(), a mean over the L layers of
  //   E sum_e f_e P_e,
  // where f_e is the share of the tokens that go through expert e, so that sum_e f_e = k, and P_e
  // is the mean of its probability in the softmax over all E. With equal loads it is k. Shares and
  // means are those of all tokens of the update, on all ranks (arXiv:2501.11873). f has no
  // gradient. The tokens are those that the forward pass reads (Sequence::tokens), prompts too,
  // each once as MicroBatch::balance says. f counts the experts that the tokens go through, so the
  // recorded ones where there are any. transformers takes f and P of all layers together, so that
  // one layer may make up for another; here each layer is balanced by itself, as in the paper.
  absl::Status SetRouterBalance(absl::Span<MicroBatch> batches, double step_scale);

 private:
  struct Scores {
    std::vector<float> logprobs, entropy;  // [N]
  };
  TrainModel& Anchor();  // The model whose log-probs are the proximal ones.
  absl::StatusOr<Scores> Score(TrainModel& model, const MicroBatch& batch);
  // The same for a frozen model, which chooses its experts itself.
  absl::StatusOr<Scores> ScoreFrozen(TrainModel& model, MicroBatch& batch);
  absl::StatusOr<std::vector<float>> ScoreReference(MicroBatch& batch);

  const Settings& settings_;
  const Rules& rules_;
  const Models models_;
  Ranks* const ranks_;
};

}  // namespace sluice::trainer
