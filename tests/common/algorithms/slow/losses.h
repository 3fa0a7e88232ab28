#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "tests/common/algorithms/slow/batch.h"

// Sections 6, 7, 11 and 12 of the sheet: losses of one token as functions of lp, its log-prob under
// the current policy. Everything else is a constant, so that a difference quotient in lp is the
// gradient.
namespace sluice::slow {

struct TokenConstants {
  double sg = 0;      // sg(lp), the value of lp where the gradient is taken.
  double anchor = 0;  // lp of the anchor: prox or behav.
  double advantage = 0;
  double log_geo = 0;  // The mean of log x over the sequence, for GSPO.
};

inline double Clip(double x, double low, double high) { return std::min(std::max(x, low), high); }
inline double RatioTo(double anchor, double lp) { return std::exp(Clamp20(lp - anchor)); }

// 6.1 with c = 1.
inline double Reinforce(double lp, const TokenConstants& c) { return -c.advantage * lp; }

// 6.3 on top of a loss f.
inline double DualClip(double f, double advantage, std::optional<double> bound) {
  return advantage < 0 && bound ? std::min(f, -advantage * *bound) : f;
}

// 6.2, 6.3 and 6.4.
inline double PpoClip(double lp, const TokenConstants& c, double e_lo, double e_hi,
                      std::optional<double> dual) {
  const double x = RatioTo(c.anchor, lp);
  return DualClip(std::max(-c.advantage * x, -c.advantage * Clip(x, 1 - e_lo, 1 + e_hi)),
                  c.advantage, dual);
}

// 6.5
inline double Gspo(double lp, const TokenConstants& c, double e_lo, double e_hi) {
  const double s = std::exp(std::min(10.0, Clamp20(c.log_geo) + lp - c.sg));
  return std::max(-c.advantage * s, -c.advantage * Clip(s, 1 - e_lo, 1 + e_hi));
}

// 6.6
inline double Cispo(double lp, const TokenConstants& c, double c_lo, double c_hi) {
  return -Clip(RatioTo(c.anchor, c.sg), c_lo, c_hi) * c.advantage * lp;
}

// 6.7
inline double Sapo(double lp, const TokenConstants& c, double tau_pos, double tau_neg) {
  const double x = RatioTo(c.anchor, lp), tau = c.advantage > 0 ? tau_pos : tau_neg;
  return -c.advantage * (4 / tau) / (1 + std::exp(-tau * (x - 1)));
}

// 8. e = infinity turns the clip off.
inline double ValueLossOf(double v, double old_v, double target, double e) {
  const double clipped = Clip(v, old_v - e, old_v + e);
  return 0.5 * std::max((v - target) * (v - target), (clipped - target) * (clipped - target));
}

// 12.4. The anchor is behav.
inline double DppoTv(double lp, const TokenConstants& c, double delta, double kappa) {
  const double moved = std::exp(c.sg) - std::exp(c.anchor);
  const bool drop = (c.advantage > 0 && moved > delta) || (c.advantage < 0 && moved < -delta);
  const double log_rho = Clamp20(lp - c.anchor);
  return (drop ? 0 : -c.advantage * std::exp(log_rho)) + kappa * log_rho * log_rho;
}

// 12.2, the clip. The upper bound is (1 + e_hi) x / sg(x), so that a token above it keeps its
// gradient even where x itself is clamped. The advantage is A' already.
inline double AepoClip(double lp, const TokenConstants& c, double e_lo, double e_hi,
                       std::optional<double> dual) {
  const double x = RatioTo(c.anchor, lp);
  const double upper = (1 + e_hi) * std::exp(lp - c.sg);
  return DualClip(std::max(-c.advantage * x, -c.advantage * Clip(x, 1 - e_lo, upper)), c.advantage,
                  dual);
}

// 12.2, the advantages A' = A (1 + strength h).
inline Matrix AepoAdvantages(const Flags& mask, const Matrix& entropy, const Matrix& advantage,
                             double strength) {
  const std::vector<double> all = Select(mask, entropy);
  const double std = all.size() < 2 ? 0 : Std(all, 1);
  Matrix out = Like(mask);
  ForEachToken(mask, [&](size_t i, size_t t) {
    const double h = std == 0 ? 0 : (entropy[i][t] - Mean(all)) / std;
    out[i][t] = advantage[i][t] * (1 + strength * h);
  });
  return out;
}

// 7.1. `sg` is the value of lp as a constant.
inline double K1(double lp, double ref) { return Clamp20(lp - ref); }
inline double K2(double lp, double ref) { return K1(lp, ref) * K1(lp, ref) / 2; }
inline double K3(double lp, double ref) {
  return std::min(10.0, std::exp(-K1(lp, ref)) - 1 + K1(lp, ref));
}
inline double K2Plus(double lp, double ref, double sg) {
  return K3(sg, ref) + K2(lp, ref) - K2(sg, ref);
}
inline double K3Is(double lp, double ref, double behav) {
  return std::isfinite(behav) ? RatioTo(behav, lp) * K3(lp, ref) : 0;
}

// 11.1 (a): the advantage of a token. The clamp is ours; the sheet has none.
inline double DistilledAdvantage(double task, double lambda, double anchor, double teacher) {
  return task - lambda * Clamp20(anchor - teacher);
}

// 11.1 (b), over the tokens of `support`: the KL of softmax(z / temperature) from
// softmax(y / temperature), both renormalised on them.
inline double ReverseKl(const std::vector<double>& z, const std::vector<double>& y,
                        double temperature, const std::vector<size_t>& support) {
  double sum_z = 0, sum_y = 0, kl = 0;
  for (const size_t v : support)
    sum_z += std::exp(z[v] / temperature), sum_y += std::exp(y[v] / temperature);
  for (const size_t v : support) {
    const double p = std::exp(z[v] / temperature) / sum_z, q = std::exp(y[v] / temperature) / sum_y;
    kl += p * std::log(p / q);
  }
  return kl;
}

// 11.2
inline double SftLoss(double lp) { return -lp; }

// 11.3, for the margin Delta. log(1 + exp(-x)), without overflow.
inline double DpoPairLoss(double delta, double beta) {
  const double x = -beta * delta;
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

// The difference quotient that stands for the gradient of `f` at lp. `kink`, if not null, says
// whether the slopes on both sides differ: then lp is at a bound, and there is no gradient.
template <typename F>
double Slope(const F& f, double lp, bool* kink = nullptr) {
  const double h = 1e-6;
  const double above = (f(lp + h) - f(lp)) / h, below = (f(lp) - f(lp - h)) / h;
  const double slope = (f(lp + h) - f(lp - h)) / (2 * h);
  if (kink != nullptr) *kink = std::abs(above - below) > 1e-4 * std::max(1.0, std::abs(slope));
  return slope;
}

}  // namespace sluice::slow
