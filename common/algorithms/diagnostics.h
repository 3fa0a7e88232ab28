#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/types/span.h"
#include "common/algorithms/correction.h"
#include "common/algorithms/policy_loss.h"
#include "common/algorithms/ratio.h"
#include "common/rl/version.h"

namespace sluice {

// Diagnostics of one optimizer step, as sums that merge over micro-batches and ranks. No gradient,
// fp64, over all trainable tokens, kept or not; tokens with a log-prob that is not finite are
// counted and enter no mean.

// Effective sample size of importance weights given as logs: (sum e)^2 / sum e^2, free of overflow.
// Adding a constant to all logs changes nothing.
class EssSum {
 public:
  void Add(double log_weight);
  void Merge(const EssSum& other);
  int64_t count() const { return count_; }
  double Ess() const;    // In [1, count]; 0 if empty.
  double Ratio() const;  // Ess / count, in (0, 1]; 1 if empty.

 private:
  void Rescale(double max);
  int64_t count_ = 0;
  double max_ = 0, sum_ = 0, squares_ = 0;  // Of exp(log_weight - max_).
};

// Factor of the learning rate under variance control (arXiv 2602.17616): min(1, ratio /
// base)^power.
double EssFactor(double ess_ratio, double base = 1.0, double power = 0.5);

struct PolicyMetrics {
  int64_t tokens = 0, sequences = 0;  // N, B_v
  // k1 = mean(-log x), k3 = mean(x - 1 - log x) of the ratio behind each name.
  double kl_behav_prox_k1 = 0, kl_behav_prox_k3 = 0;    // w
  double kl_behav_theta_k1 = 0, kl_behav_theta_k3 = 0;  // rho
  double kl_prox_theta_k1 = 0, kl_prox_theta_k3 = 0;    // r
  double kl_prox_theta_k3_is = 0;                       // mean(w (r - 1 - log r))
  double chi2_token = 0, chi2_seq = 0;                  // mean(rho^2) - 1; per sequence
  double ess_seq = 0, ess_token = 0, ess_seq_w = 0;     // As ratios in (0, 1].
  double absdiff_mean = 0, absdiff_max = 0;             // abs(log w)
  double prob_diff_mean = 0, prob_diff_max = 0;         // abs(exp(lp_prox) - exp(lp_behav))
  // mean over sequences of mean_t (lp_behav - lp_prox)
  double log_ppl_gap = 0;
  double clip_high = 0, clip_low = 0, clip_dual = 0;  // Fractions of N.
  double kept = 0, capped = 0, vetoed_sequences = 0;  // Fractions of N, N, B_v.
  double advantage_mean = 0, advantage_std = 0;       // std with ddof 1; 0 at N = 1
};

class PolicyStats {
 public:
  // With no prox, and with prox self, w is taken with the current policy in prox's place.
  void Add(const PolicyTokens& tokens, const Correction& correction, const ClipCounts& clipped);
  void Merge(const PolicyStats& other);

  int64_t tokens() const { return tokens_; }
  int64_t bad_behav() const { return bad_behav_; }
  // Tokens whose lp_theta, lp_prox or lp_ref is not finite: the step is to be skipped.
  int64_t bad_policy() const { return bad_policy_; }
  // Nothing if no token with finite log-probs was added: a metric is absent, never NaN.
  std::optional<PolicyMetrics> Metrics() const;

 private:
  struct RatioSums {  // Of one log-ratio.
    double k1 = 0, k3 = 0;
    void Add(double log_ratio, double weight = 1);
    void Merge(const RatioSums& other);
  };
  int64_t tokens_ = 0, finite_ = 0, sequences_ = 0, finite_sequences_ = 0, bad_behav_ = 0,
          bad_policy_ = 0;
  int64_t kept_ = 0, capped_ = 0, vetoed_ = 0;
  ClipCounts clipped_;
  RatioSums w_, rho_, r_, r_is_;
  double rho2_ = 0, rhoseq2_ = 0;
  EssSum ess_seq_, ess_token_, ess_seq_w_;
  double absdiff_ = 0, absdiff_max_ = 0, prob_diff_ = 0, prob_diff_max_ = 0, ppl_gap_ = 0;
  double advantage_ = 0, advantage2_ = 0;
};

// Staleness of the tokens a step trains: the step's version minus the token's.
class StalenessStats {
 public:
  // One sequence: its tokens' versions in runs, and the version the step starts from.
  void Add(absl::Span<const VersionRun> runs, int64_t step_version);
  void Merge(const StalenessStats& other);

  // Staleness to tokens.
  const std::map<int64_t, int64_t>& histogram() const { return histogram_; }
  int64_t tokens() const;
  int64_t max() const;              // 0 if empty
  double mean() const;              // 0 if empty
  double Quantile(double q) const;  // Linear between neighbours at index q (n - 1); 0 if empty.
  double mixed_fraction() const;    // Of sequences, those of more than one version.

 private:
  std::map<int64_t, int64_t> histogram_;
  int64_t sequences_ = 0, mixed_ = 0;
};

}  // namespace sluice
