#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "tests/common/algorithms/slow/batch.h"

// Section 5 of the sheet: proximal policies, weights u and masks k. All of them are constants.
namespace sluice::slow {

// 5.1 P3. A token's d is v_train + 1 - v, that is its staleness + 1. Where the behaviour log-prob
// is missing there is nothing to interpolate, and prox is theta.
inline Matrix LoglinearProx(const Batch& b) {
  Matrix out = Like(b.mask);
  ForEachToken(b.mask, [&](size_t i, size_t t) {
    const double d = b.staleness[i][t] + 1, alpha = d >= 1 ? (d - 1) / d : 0;
    out[i][t] = std::isfinite(b.behav[i][t])
                    ? b.behav[i][t] + alpha * (b.theta[i][t] - b.behav[i][t])
                    : b.theta[i][t];
  });
  return out;
}

// 5.1 P4: phi after the updates theta_1, theta_2, .., each a scalar.
inline std::vector<double> AverageWeights(double theta0, const std::vector<double>& theta,
                                          double beta) {
  double phi = theta0, c = 1;
  std::vector<double> out;
  for (const double v : theta) {
    const double next = beta * c + 1;
    phi = phi * (beta * c / next) + v / next;
    c = next;
    out.push_back(phi);
  }
  return out;
}

// The anchor of the update ratio, by the job key `prox`.
inline Matrix Anchor(const Batch& b, const std::string& prox) {
  if (prox == "none") return b.behav;
  if (prox == "self") return b.theta;
  if (prox == "loglinear") return LoglinearProx(b);
  return b.prox;  // recompute, ewma
}

// log w of every token: prox to behaviour. Without a prox, and for a loss without an update ratio,
// rho takes its place. Under `self` prox is theta.
inline Matrix LogWeights(const Batch& b, const std::string& prox, bool total_ratio) {
  if (prox == "none" || total_ratio) return Difference(b.mask, b.theta, b.behav);
  return Difference(b.mask, Anchor(b, prox), b.behav);
}

// The settings of 5.2 and 5.3. What is unset is off.
struct CorrectionSettings {
  std::string level = "none";  // none, token, sequence
  double low = 0, cap = INFINITY;
  bool drop = false;  // Weights outside of the bounds drop their tokens (IcePop, MIS).
  std::optional<double> veto, veto_high, geo_low, geo_high, k3_max, opsm, m2po;
};

struct Weights {
  Matrix u;
  Flags k;
};

// The tokens with mask 1 whose behaviour log-prob is finite. Section 1.3 rejects the others, and
// with no log w they enter no sum over their sequence.
inline Flags Usable(const Batch& b) {
  Flags out = b.mask;
  ForEachToken(b.mask, [&](size_t i, size_t t) { out[i][t] = std::isfinite(b.behav[i][t]); });
  return out;
}

// Sum over the usable tokens of sequence i.
inline double SumOver(const Flags& usable, const Matrix& values, size_t i) {
  double sum = 0;
  for (size_t t = 0; t < usable[i].size(); ++t) {
    if (usable[i][t]) sum += values[i][t];
  }
  return sum;
}

// u of 5.2 for a ratio w. Outside of the bounds it becomes a bound, or 0 where they drop.
inline double BoundedWeight(double w, const CorrectionSettings& s) {
  if (s.drop) return w >= s.low && w <= s.cap ? w : 0;
  return std::min(std::max(w, s.low), s.cap);
}

// u of 5.2, before batch normalisation. A token without a log w has no correction of its own.
inline Matrix Weigh(const Flags& mask, const Flags& usable, const Matrix& log_w,
                    const CorrectionSettings& s) {
  Matrix u = Like(mask);
  ForEachToken(mask, [&](size_t i, size_t t) {
    const double of_token = usable[i][t] ? log_w[i][t] : 0;
    const double log_ratio = s.level == "token" ? of_token : SumOver(usable, log_w, i);
    u[i][t] = s.level == "none" ? 1 : BoundedWeight(std::exp(Clamp20(log_ratio)), s);
  });
  return u;
}

// Each of these says whether the rule of 5.3 rejects the token.

inline bool VetoRejects(const Flags& usable, const Matrix& log_w, size_t i,
                        const CorrectionSettings& s) {
  for (size_t t = 0; t < usable[i].size(); ++t) {
    if (!usable[i][t]) continue;
    const double w = std::exp(Clamp20(log_w[i][t]));
    if ((s.veto && w < *s.veto) || (s.veto_high && w > *s.veto_high)) return true;
  }
  return false;
}

inline bool GeoRejects(const Flags& usable, const Matrix& log_w, size_t i,
                       const CorrectionSettings& s) {
  const double geo = std::exp(Clamp20(SumOver(usable, log_w, i) / TokensOf(usable, i)));
  return (s.geo_low && geo < *s.geo_low) || (s.geo_high && geo > *s.geo_high);
}

inline bool K3Rejects(const Flags& usable, const Matrix& log_w, size_t i,
                      const CorrectionSettings& s) {
  double sum = 0;
  for (size_t t = 0; t < usable[i].size(); ++t) {
    const double log_ratio = usable[i][t] ? Clamp20(log_w[i][t]) : 0;
    if (usable[i][t]) sum += std::exp(log_ratio) - 1 - log_ratio;
  }
  return s.k3_max && sum / TokensOf(usable, i) > *s.k3_max;
}

inline bool OpsmRejects(const Batch& b, const Flags& usable, size_t i, size_t t,
                        const CorrectionSettings& s) {
  if (!s.opsm || b.advantage[i][t] >= 0) return false;
  const Matrix fallen = Difference(usable, b.behav, b.theta);
  return SumOver(usable, fallen, i) / TokensOf(usable, i) > *s.opsm;
}

// M2PO of 5.3, in the words of the sheet: while the second moment of the outward tokens is above
// tau, remove the one with the largest square; of equal ones, the first.
inline void RejectByM2po(const Batch& b, double tau, Flags* k) {
  const Matrix log_rho = Difference(*k, b.theta, b.behav);
  for (;;) {
    double sum = 0, count = 0, largest = -1;
    size_t row = 0, column = 0;
    ForEachToken(*k, [&](size_t i, size_t t) {
      const double a = b.advantage[i][t], l = log_rho[i][t];
      if (!((a > 0 && l > 0) || (a < 0 && l < 0))) return;
      sum += l * l, ++count;
      if (l * l > largest) largest = l * l, row = i, column = t;
    });
    if (count == 0 || sum / count <= tau) return;
    (*k)[row][column] = 0;
  }
}

// All of section 5, for the logarithms of the ratio that the bounds are of. M2PO runs last; the
// order of the others does not matter.
inline Weights CorrectBy(const Batch& b, const Matrix& log_w, const CorrectionSettings& s) {
  const Flags usable = Usable(b);
  Weights out{Weigh(b.mask, usable, log_w, s), usable};
  ForEachToken(usable, [&](size_t i, size_t t) {
    const bool rejected = (s.level != "none" && s.drop && out.u[i][t] == 0) ||
                          VetoRejects(usable, log_w, i, s) || GeoRejects(usable, log_w, i, s) ||
                          K3Rejects(usable, log_w, i, s) || OpsmRejects(b, usable, i, t, s);
    if (rejected) out.k[i][t] = 0;
  });
  if (s.m2po) RejectByM2po(b, *s.m2po, &out.k);
  return out;
}

inline Weights Correct(const Batch& b, const std::string& prox, bool total_ratio,
                       const CorrectionSettings& s) {
  return CorrectBy(b, LogWeights(b, prox, total_ratio), s);
}

// 5.1 P5: the bounds are of w_mis, and w_stale has its own cap, per token or per sequence like the
// weight. A token whose `snap` is not finite has w_mis = w.
inline Weights CorrectExact(const Batch& b, const Matrix& snap, bool total_ratio,
                            const CorrectionSettings& s, double stale_cap) {
  const Matrix log_w = LogWeights(b, "exact", total_ratio);
  Matrix log_mis = log_w, log_stale = Like(b.mask);
  ForEachToken(b.mask, [&](size_t i, size_t t) {
    if (!std::isfinite(snap[i][t])) return;
    log_mis[i][t] = snap[i][t] - b.behav[i][t];
    log_stale[i][t] = log_w[i][t] - log_mis[i][t];
  });
  Weights out = CorrectBy(b, log_mis, s);
  if (s.level == "none") return out;
  const Flags usable = Usable(b);
  ForEachToken(usable, [&](size_t i, size_t t) {
    const double log_ratio = s.level == "token" ? log_stale[i][t] : SumOver(usable, log_stale, i);
    out.u[i][t] *= std::min(std::exp(Clamp20(log_ratio)), stale_cap);
  });
  return out;
}

// How many usable tokens have a weight that a bound has changed (the capped fraction of 10.2).
inline int CountCapped(const Flags& usable, const Matrix& log_w, const CorrectionSettings& s) {
  if (s.drop) return 0;
  CorrectionSettings unbounded = s;
  unbounded.low = 0, unbounded.cap = INFINITY;
  const Matrix u = Weigh(usable, usable, log_w, s), raw = Weigh(usable, usable, log_w, unbounded);
  int capped = 0;
  ForEachToken(usable, [&](size_t i, size_t t) { capped += u[i][t] != raw[i][t]; });
  return capped;
}

// The mean of the batch normalisation of 5.2: over the tokens of the base mask, or over sequences
// at sequence level.
inline double MeanWeight(const Flags& mask, const Matrix& u, const std::string& level) {
  if (level != "sequence") return Mean(Select(mask, u));
  std::vector<double> of_sequences;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (TokensOf(mask, i) > 0) of_sequences.push_back(SumOver(mask, u, i) / TokensOf(mask, i));
  }
  return Mean(of_sequences);
}

}  // namespace sluice::slow
