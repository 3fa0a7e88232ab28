#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/common/algorithms/slow/batch.h"

// Sections 9.1, 10.2 and 6.9 of the sheet: numbers about the log-ratios of a step.
namespace sluice::slow {

using Values = std::vector<double>;

// 9.1, with the largest log-weight taken out, so that nothing overflows.
inline double Ess(const Values& log_weights) {
  const double most = *std::max_element(log_weights.begin(), log_weights.end());
  double sum = 0, squares = 0;
  for (const double l : log_weights) {
    sum += std::exp(l - most);
    squares += std::exp(l - most) * std::exp(l - most);
  }
  return sum * sum / squares;
}
inline double EssRatio(const Values& log_weights) {
  return Ess(log_weights) / static_cast<double>(log_weights.size());
}
inline double LearningRateFactor(double q, double base, double power) {
  return std::pow(std::min(1.0, q / base), power);
}

// L_i: the sum of the log-ratios of each sequence that has tokens.
inline Values SequenceSums(const Flags& mask, const Matrix& log_ratio) {
  Values out;
  for (size_t i = 0; i < mask.size(); ++i) {
    double sum = 0;
    for (size_t t = 0; t < mask[i].size(); ++t) sum += mask[i][t] ? log_ratio[i][t] : 0;
    if (TokensOf(mask, i) > 0) out.push_back(sum);
  }
  return out;
}

// mean(-log x), with log x clamped as that of 7.1
inline double MeanK1(const Values& log_x) {
  double sum = 0;
  for (const double l : log_x) sum -= Clamp20(l);
  return sum / static_cast<double>(log_x.size());
}

// The mean of x - 1 - log x over tokens.
inline double MeanK3(const Values& log_x) {
  double sum = 0;
  for (const double l : log_x) sum += std::exp(Clamp20(l)) - 1 - Clamp20(l);
  return sum / static_cast<double>(log_x.size());
}

// mean(w (r - 1 - log r))
inline double MeanWeightedK3(const Values& log_w, const Values& log_r) {
  double sum = 0;
  for (size_t n = 0; n < log_r.size(); ++n)
    sum += std::exp(Clamp20(log_w[n])) * (std::exp(Clamp20(log_r[n])) - 1 - Clamp20(log_r[n]));
  return sum / static_cast<double>(log_r.size());
}

// mean(x^2) - 1, of tokens or of sequences.
inline double Chi2(const Values& log_x) {
  double sum = 0;
  for (const double l : log_x) sum += std::exp(Clamp20(l)) * std::exp(Clamp20(l));
  return sum / static_cast<double>(log_x.size()) - 1;
}

// abs(log w), for its mean and its maximum.
inline Values AbsDiff(const Values& log_w) {
  Values out;
  for (const double l : log_w) out.push_back(std::abs(l));
  return out;
}

// abs(exp(lp_prox) - exp(lp_behav)), for its mean and its maximum.
inline Values ProbDiff(const Values& lp_prox, const Values& lp_behav) {
  Values out;
  for (size_t n = 0; n < lp_prox.size(); ++n)
    out.push_back(std::abs(std::exp(lp_prox[n]) - std::exp(lp_behav[n])));
  return out;
}

// mean_i of the mean over the sequence's tokens of lp_behav - lp_prox.
inline double LogPplGap(const Flags& mask, const Matrix& behav, const Matrix& prox) {
  const Values sums = SequenceSums(mask, Difference(mask, behav, prox));
  Values means;
  size_t next = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (TokensOf(mask, i) > 0) means.push_back(sums[next++] / TokensOf(mask, i));
  }
  return Mean(means);
}

inline double Largest(const Values& values) {
  return *std::max_element(values.begin(), values.end());
}

// The quantile of 10.2: linear interpolation at index q (n - 1) of the sorted values.
inline double Quantile(Values values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

// 6.9: how many tokens of the base mask are at each bound, from their x and A.
struct Clipped {
  int64_t high = 0, low = 0, dual = 0;
};
inline Clipped CountAtBounds(const Values& x, const Values& advantage, double e_lo, double e_hi,
                             double dual) {
  Clipped out;
  for (size_t n = 0; n < x.size(); ++n) {
    out.high += advantage[n] > 0 && x[n] > 1 + e_hi;
    out.low += advantage[n] < 0 && x[n] < 1 - e_lo;
    out.dual += advantage[n] < 0 && x[n] > dual;
  }
  return out;
}

}  // namespace sluice::slow
