#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/types/span.h"
#include "common/algorithms/correction.h"
#include "common/algorithms/histogram.h"
#include "common/algorithms/losses/ppo_clip.h"
#include "common/algorithms/ratio.h"
#include "common/rl/version.h"

namespace sluice {

// Diagnostics of one optimizer step, as sums that can be merged over micro-batches and ranks. They
// carry no gradient and are computed in fp64, over all trainable tokens whether kept or not. Tokens
// with a log-prob that is not finite are counted, but enter no mean.
//
// Legend: w, rho and r are the ratios behaviour to proximal, behaviour to current and proximal to
// current policy: exp(lp_prox - lp_behav), exp(lp_theta - lp_behav), exp(lp_theta - lp_prox).

// Effective sample size of importance weights e that are given as logarithms: (sum e)^2 / sum e^2.
// It cannot overflow. Adding a constant to all logarithms changes nothing.
class EssSum {
 public:
  void Add(double log_weight);
  void Merge(const EssSum& other);
  int64_t count() const { return count_; }
  double Ess() const;    // In [1, count], or 0 if empty.
  double Ratio() const;  // Ess / count, in (0, 1], or 1 if empty.

 private:
  void Rescale(double max);
  int64_t count_ = 0;
  // max_ is the largest log_weight; the sums are of exp(log_weight - max_).
  double max_ = 0, sum_ = 0, squares_ = 0;
};

// Factor of the learning rate under variance control (arXiv 2602.17616): min(1, ess_ratio /
// base)^power.
double EssFactor(double ess_ratio, double base = 1.0, double power = 0.5);

// The values that are exported. Legend: N trainable tokens, B_v sequences with trainable tokens.
struct PolicyMetrics {
  int64_t tokens = 0, sequences = 0;  // N, B_v
  // k1 = mean(-log x) and k3 = mean(x - 1 - log x), where x is the ratio in the comment of the
  // line.
  double kl_behav_prox_k1 = 0, kl_behav_prox_k3 = 0;    // w
  double kl_behav_theta_k1 = 0, kl_behav_theta_k3 = 0;  // rho
  double kl_prox_theta_k1 = 0, kl_prox_theta_k3 = 0;    // r
  double kl_prox_theta_k3_is = 0;                       // mean(w (r - 1 - log r))
  double chi2_token = 0, chi2_seq = 0;  // mean(rho^2) - 1, per token and per sequence
  // Ess / count, in (0, 1]: of rho per sequence, of rho per token, of w per sequence.
  double ess_seq = 0, ess_token = 0, ess_seq_w = 0;
  double absdiff_mean = 0, absdiff_max = 0;      // abs(log w)
  double prob_diff_mean = 0, prob_diff_max = 0;  // abs(exp(lp_prox) - exp(lp_behav))
  // The mean over sequences of mean_t (lp_behav - lp_prox).
  double log_ppl_gap = 0;
  double clip_high = 0, clip_low = 0, clip_dual = 0;  // Fractions of N.
  double kept = 0, capped = 0;                        // Fractions of N.
  double stale_capped = 0, conflated = 0;             // Fractions of N; see Correction.
  struct Masked {
    double tokens = 0, sequences = 0;  // Fractions of N and of B_v.
  };
  std::array<Masked, kMasks> masked{};           // By Mask.
  double weight_mean = 1;                        // Of the importance weights; 1 if there are none.
  double advantage_mean = 0, advantage_std = 0;  // std with ddof 1; 0 at N = 1
};

// The ratios of a step's tokens, for their quantiles.
struct RatioQuantiles {
  LogRatioHistogram w, rho, r;
};

// Collects the sums of a step. Not thread-safe.
class PolicyStats {
 public:
  // Adds a micro-batch. If `tokens` has no lp_prox (prox none or self), the current policy takes
  // the place of the proximal one.
  void Add(const PolicyTokens& tokens, const Correction& correction, const ClipCounts& clipped);
  void Merge(const PolicyStats& other);
  // Multiplies all advantages that were counted, for a factor that is known only later.
  void ScaleAdvantages(double factor);

  int64_t tokens() const { return tokens_; }
  // Tokens whose lp_behav is not finite.
  int64_t bad_behav() const { return bad_behav_; }
  // Tokens whose lp_theta, lp_prox, lp_ref or lp_teacher is not finite. If there is one, the step
  // must be skipped.
  int64_t bad_policy() const { return bad_policy_; }
  // Returns nothing if no token with finite log-probs was added, so that a metric is absent rather
  // than NaN.
  std::optional<PolicyMetrics> Metrics() const;
  const RatioQuantiles& quantiles() const { return quantiles_; }

 private:
  void AddMasked(const std::array<MaskCount, kMasks>& masked);

  struct RatioSums {  // Sums over one log-ratio.
    double k1 = 0, k3 = 0;
    void Add(double log_ratio, double weight = 1);
    void Merge(const RatioSums& other);
  };
  // finite_ counts the tokens whose log-probs are all finite, and finite_sequences_ the sequences
  // with such a token. All sums of ratios, differences and advantages are over these.
  int64_t tokens_ = 0, finite_ = 0, sequences_ = 0, finite_sequences_ = 0, bad_behav_ = 0,
          bad_policy_ = 0;
  int64_t kept_ = 0, capped_ = 0, stale_capped_ = 0, conflated_ = 0, weights_ = 0;
  double weight_sum_ = 0;
  std::array<MaskCount, kMasks> masked_{};
  RatioQuantiles quantiles_;
  ClipCounts clipped_;
  RatioSums w_, rho_, r_, r_is_;   // Per token. r_is_ is r_ with each token weighted by its w.
  double rho2_ = 0, rhoseq2_ = 0;  // Sums of rho^2 per token and per sequence.
  EssSum ess_seq_, ess_token_, ess_seq_w_;
  double absdiff_ = 0, absdiff_max_ = 0, prob_diff_ = 0, prob_diff_max_ = 0, ppl_gap_ = 0;
  double advantage_ = 0, advantage2_ = 0;
};

// Staleness of the tokens that a step trains: the step's version minus the version that sampled the
// token.
class StalenessStats {
 public:
  // Adds one sequence: the versions of its tokens, in runs, and the version that the step starts
  // from.
  void Add(absl::Span<const VersionRun> runs, int64_t step_version);
  void Merge(const StalenessStats& other);

  // Number of tokens by staleness.
  const std::map<int64_t, int64_t>& histogram() const { return histogram_; }
  int64_t tokens() const;
  int64_t max() const;  // 0 if empty.
  double mean() const;  // 0 if empty.
  // Interpolates linearly at index q (n - 1) of the n sorted values. 0 if empty. q is in [0, 1].
  double Quantile(double q) const;
  double mixed_fraction() const;  // Share of sequences with tokens of more than one version.

 private:
  std::map<int64_t, int64_t> histogram_;
  int64_t sequences_ = 0, mixed_ = 0;
};

}  // namespace sluice
