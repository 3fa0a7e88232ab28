#include "common/algorithms/diagnostics.h"

#include <algorithm>
#include <cmath>

namespace sluice {

// Makes `max` the new reference of the sums.
void EssSum::Rescale(double max) {
  if (count_ > 0) {
    sum_ *= std::exp(max_ - max);
    squares_ *= std::exp(2 * (max_ - max));
  }
  max_ = max;
}

void EssSum::Add(double log_weight) {
  if (count_ == 0 || log_weight > max_) Rescale(log_weight);
  const double e = std::exp(log_weight - max_);
  sum_ += e;
  squares_ += e * e;
  ++count_;
}

void EssSum::Merge(const EssSum& other) {
  if (other.count_ == 0) return;
  EssSum scaled = other;
  const double max = count_ == 0 ? other.max_ : std::max(max_, other.max_);
  Rescale(max);
  scaled.Rescale(max);
  sum_ += scaled.sum_;
  squares_ += scaled.squares_;
  count_ += scaled.count_;
}

double EssSum::Ess() const {
  return count_ == 0 ? 0 : std::clamp(sum_ * sum_ / squares_, 1.0, static_cast<double>(count_));
}
double EssSum::Ratio() const { return count_ == 0 ? 1 : Ess() / static_cast<double>(count_); }

double EssFactor(double ess_ratio, double base, double power) {
  return std::pow(std::min(1.0, ess_ratio / base), power);
}

void PolicyStats::RatioSums::Add(double log_ratio, double weight) {
  const double log_x = ClampLogRatio(log_ratio);
  k1 -= weight * log_x;
  k3 += weight * (std::exp(log_x) - 1 - log_x);
}

void PolicyStats::RatioSums::Merge(const RatioSums& other) {
  k1 += other.k1;
  k3 += other.k3;
}

void PolicyStats::Add(const PolicyTokens& tokens, const Correction& correction,
                      const ClipCounts& clipped) {
  const absl::Span<const float> prox = tokens.lp_prox.empty() ? tokens.lp_theta : tokens.lp_prox;
  tokens_ += tokens.tokens();
  bad_behav_ += correction.bad_behav;
  capped_ += correction.capped_tokens;
  stale_capped_ += correction.stale_capped;
  conflated_ += correction.conflated;
  weights_ += correction.weights;
  weight_sum_ += correction.weight_sum;
  AddMasked(correction.masked);
  clipped_.high += clipped.high;
  clipped_.low += clipped.low;
  clipped_.dual += clipped.dual;
  for (uint8_t keep : correction.keep) kept_ += keep;

  for (int64_t i = 0; i < tokens.sequences(); ++i) {
    const int64_t begin = tokens.offsets[i], end = tokens.offsets[i + 1];
    if (begin == end) continue;
    ++sequences_;
    double log_w_sum = 0, log_rho_sum = 0;
    int64_t finite = 0;
    for (int64_t t = begin; t < end; ++t) {
      const bool policy_ok = std::isfinite(tokens.lp_theta[t]) && std::isfinite(prox[t]) &&
                             (tokens.lp_ref.empty() || std::isfinite(tokens.lp_ref[t])) &&
                             (tokens.lp_teacher.empty() || std::isfinite(tokens.lp_teacher[t]));
      bad_policy_ += !policy_ok;
      if (!policy_ok || !std::isfinite(tokens.lp_behav[t])) continue;

      ++finite;
      const double log_w = static_cast<double>(prox[t]) - tokens.lp_behav[t];
      const double log_r = static_cast<double>(tokens.lp_theta[t]) - prox[t];
      const double log_rho = static_cast<double>(tokens.lp_theta[t]) - tokens.lp_behav[t];
      log_w_sum += log_w;
      log_rho_sum += log_rho;
      // Sums over tokens.
      w_.Add(log_w);
      r_.Add(log_r);
      rho_.Add(log_rho);
      r_is_.Add(log_r, std::exp(ClampLogRatio(log_w)));
      quantiles_.w.Add(log_w);
      quantiles_.rho.Add(log_rho);
      quantiles_.r.Add(log_r);
      rho2_ += std::exp(2 * ClampLogRatio(log_rho));
      ess_token_.Add(log_rho);
      absdiff_ += std::abs(log_w);
      absdiff_max_ = std::max(absdiff_max_, std::abs(log_w));

      const double prob_diff =
          std::abs(std::exp(double{prox[t]}) - std::exp(double{tokens.lp_behav[t]}));
      prob_diff_ += prob_diff;
      prob_diff_max_ = std::max(prob_diff_max_, prob_diff);
      advantage_ += tokens.advantage[t];
      advantage2_ += static_cast<double>(tokens.advantage[t]) * tokens.advantage[t];
    }

    finite_ += finite;
    if (finite == 0) continue;
    ++finite_sequences_;
    // Sums over sequences.
    ess_seq_.Add(log_rho_sum);
    ess_seq_w_.Add(log_w_sum);
    rhoseq2_ += std::exp(2 * ClampLogRatio(log_rho_sum));
    ppl_gap_ -= log_w_sum / static_cast<double>(finite);
  }
}

void PolicyStats::ScaleAdvantages(double factor) {
  advantage_ *= factor;
  advantage2_ *= factor * factor;
}

void PolicyStats::AddMasked(const std::array<MaskCount, kMasks>& masked) {
  for (size_t m = 0; m < kMasks; ++m) {
    masked_[m].tokens += masked[m].tokens;
    masked_[m].sequences += masked[m].sequences;
  }
}

void PolicyStats::Merge(const PolicyStats& other) {
  tokens_ += other.tokens_;
  finite_ += other.finite_;
  sequences_ += other.sequences_;
  finite_sequences_ += other.finite_sequences_;
  bad_behav_ += other.bad_behav_;
  bad_policy_ += other.bad_policy_;
  kept_ += other.kept_;
  capped_ += other.capped_;
  stale_capped_ += other.stale_capped_;
  conflated_ += other.conflated_;
  weights_ += other.weights_;
  weight_sum_ += other.weight_sum_;
  AddMasked(other.masked_);
  quantiles_.w.Merge(other.quantiles_.w);
  quantiles_.rho.Merge(other.quantiles_.rho);
  quantiles_.r.Merge(other.quantiles_.r);
  clipped_.high += other.clipped_.high;
  clipped_.low += other.clipped_.low;
  clipped_.dual += other.clipped_.dual;
  w_.Merge(other.w_);
  rho_.Merge(other.rho_);
  r_.Merge(other.r_);
  r_is_.Merge(other.r_is_);
  rho2_ += other.rho2_;
  rhoseq2_ += other.rhoseq2_;
  ess_seq_.Merge(other.ess_seq_);
  ess_token_.Merge(other.ess_token_);
  ess_seq_w_.Merge(other.ess_seq_w_);
  absdiff_ += other.absdiff_;
  absdiff_max_ = std::max(absdiff_max_, other.absdiff_max_);
  prob_diff_ += other.prob_diff_;
  prob_diff_max_ = std::max(prob_diff_max_, other.prob_diff_max_);
  ppl_gap_ += other.ppl_gap_;
  advantage_ += other.advantage_;
  advantage2_ += other.advantage2_;
}

std::optional<PolicyMetrics> PolicyStats::Metrics() const {
  if (finite_ == 0) return std::nullopt;
  // Means are over the finite tokens (n) and their sequences (b); fractions are over all tokens or
  // all sequences.
  const double n = static_cast<double>(finite_), b = static_cast<double>(finite_sequences_);
  const double all = static_cast<double>(tokens_);

  PolicyMetrics m;
  m.tokens = tokens_;
  m.sequences = sequences_;
  m.kl_behav_prox_k1 = w_.k1 / n, m.kl_behav_prox_k3 = w_.k3 / n;
  m.kl_behav_theta_k1 = rho_.k1 / n, m.kl_behav_theta_k3 = rho_.k3 / n;
  m.kl_prox_theta_k1 = r_.k1 / n, m.kl_prox_theta_k3 = r_.k3 / n;
  m.kl_prox_theta_k3_is = r_is_.k3 / n;
  m.chi2_token = rho2_ / n - 1, m.chi2_seq = rhoseq2_ / b - 1;
  m.ess_seq = ess_seq_.Ratio(), m.ess_token = ess_token_.Ratio(), m.ess_seq_w = ess_seq_w_.Ratio();
  m.absdiff_mean = absdiff_ / n, m.absdiff_max = absdiff_max_;
  m.prob_diff_mean = prob_diff_ / n, m.prob_diff_max = prob_diff_max_;
  m.log_ppl_gap = ppl_gap_ / b;
  m.clip_high = static_cast<double>(clipped_.high) / all;
  m.clip_low = static_cast<double>(clipped_.low) / all;
  m.clip_dual = static_cast<double>(clipped_.dual) / all;
  m.kept = static_cast<double>(kept_) / all, m.capped = static_cast<double>(capped_) / all;
  m.stale_capped = static_cast<double>(stale_capped_) / all;
  m.conflated = static_cast<double>(conflated_) / all;
  for (size_t i = 0; i < kMasks; ++i) {
    m.masked[i] = {static_cast<double>(masked_[i].tokens) / all,
                   static_cast<double>(masked_[i].sequences) / static_cast<double>(sequences_)};
  }
  if (weights_ > 0) m.weight_mean = weight_sum_ / static_cast<double>(weights_);
  m.advantage_mean = advantage_ / n;
  if (finite_ > 1)
    m.advantage_std =
        std::sqrt(std::max(0.0, advantage2_ - n * m.advantage_mean * m.advantage_mean) / (n - 1));
  return m;
}

void StalenessStats::Add(absl::Span<const VersionRun> runs, int64_t step_version) {
  std::optional<PolicyVersion> previous;
  bool mixed = false;
  for (const VersionRun& run : runs) {
    if (run.count == 0) continue;
    histogram_[step_version - run.version.number] += run.count;
    mixed |= previous.has_value() && *previous != run.version;
    previous = run.version;
  }
  sequences_ += previous.has_value();
  mixed_ += mixed;
}

void StalenessStats::Merge(const StalenessStats& other) {
  for (const auto& [staleness, tokens] : other.histogram_) histogram_[staleness] += tokens;
  sequences_ += other.sequences_;
  mixed_ += other.mixed_;
}

int64_t StalenessStats::tokens() const {
  int64_t tokens = 0;
  for (const auto& [staleness, count] : histogram_) tokens += count;
  return tokens;
}

int64_t StalenessStats::max() const { return histogram_.empty() ? 0 : histogram_.rbegin()->first; }

double StalenessStats::mean() const {
  double sum = 0;
  for (const auto& [staleness, count] : histogram_)
    sum += static_cast<double>(staleness) * static_cast<double>(count);
  return histogram_.empty() ? 0 : sum / static_cast<double>(tokens());
}

double StalenessStats::Quantile(double q) const {
  if (histogram_.empty()) return 0;
  const auto at = [this](int64_t index) {  // The index-th smallest staleness.
    for (const auto& [staleness, count] : histogram_) {
      if (index < count) return static_cast<double>(staleness);
      index -= count;
    }
    return static_cast<double>(max());
  };
  // The value at a position between two indexes is interpolated.
  const double position = q * static_cast<double>(tokens() - 1);
  const int64_t below = static_cast<int64_t>(position);
  return at(below) + (position - static_cast<double>(below)) * (at(below + 1) - at(below));
}

double StalenessStats::mixed_fraction() const {
  return sequences_ == 0 ? 0 : static_cast<double>(mixed_) / static_cast<double>(sequences_);
}

}  // namespace sluice
