#pragma once

#include <string>

#include "common/algorithms/spec.h"
#include "tests/common/algorithms/slow/corrections.h"
#include "tests/common/algorithms/slow/losses.h"

// The formulas of the sheet, chosen by the names of a job's `algorithm` block.
namespace sluice::slow {

// Settings of section 5. REINFORCE has no update ratio, so its weight is rho (6.1).
inline bool UsesTotalRatio(const LossSpec& spec) { return spec.kind == "reinforce"; }

inline CorrectionSettings SettingsOf(const LossSpec& spec) {
  CorrectionSettings s{.veto = spec.veto,
                       .veto_high = spec.veto_high,
                       .geo_low = spec.geo_low,
                       .geo_high = spec.geo_high,
                       .k3_max = spec.k3_max,
                       .opsm = spec.opsm,
                       .m2po = spec.m2po};
  if (!spec.tis) return s;
  s.level = spec.tis_level;
  s.low = spec.tis_low;
  s.cap = *spec.tis;
  s.drop = spec.tis_outside == "drop";
  return s;
}

inline Weights Correct(const LossSpec& spec, const Batch& b) {
  return Correct(b, spec.prox, UsesTotalRatio(spec), SettingsOf(spec));
}

// f(lp) of the loss that the spec names.
inline double TokenLoss(const LossSpec& s, double lp, const TokenConstants& c) {
  if (s.kind == "reinforce") return Reinforce(lp, c);
  if (s.kind == "ppo" || s.kind == "dapo") return PpoClip(lp, c, s.clip_low, s.clip_high, s.dual);
  if (s.kind == "gspo") return Gspo(lp, c, s.clip_low, s.clip_high);
  if (s.kind == "cispo") return Cispo(lp, c, s.cispo_low, s.cispo_high);
  if (s.kind == "sapo") return Sapo(lp, c, s.sapo_positive, s.sapo_negative);
  if (s.kind == "dppo_tv") return DppoTv(lp, c, s.dppo_delta, s.dppo_penalty);
  return s.kind == "aepo" ? AepoClip(lp, c, s.clip_low, s.clip_high, s.dual) : NAN;
}

// The constants of each token. GSPO's mean of log x is over the usable tokens of the sequence.
inline std::vector<std::vector<TokenConstants>> ConstantsOf(const LossSpec& spec, const Batch& b) {
  const Matrix anchor = Anchor(b, spec.prox);
  const Flags usable = Usable(b);
  const Matrix log_x = Difference(usable, b.theta, anchor);
  std::vector<std::vector<TokenConstants>> out = Like<TokenConstants>(b.mask, {});
  ForEachToken(usable, [&](size_t i, size_t t) {
    const double log_geo = SumOver(usable, log_x, i) / TokensOf(usable, i);
    out[i][t] = {b.theta[i][t], anchor[i][t], b.advantage[i][t], log_geo};
  });
  return out;
}

struct TokenLosses {
  Matrix value, gradient;
  Flags kink;  // 1 where the token lies at a bound, so that it has no gradient.
};

// l = u f(x, A) of every token, and its derivative by that token's lp_theta; 0 where rejected.
inline TokenLosses PolicyLosses(const LossSpec& spec, const Batch& b, const Weights& weights) {
  const std::vector<std::vector<TokenConstants>> constants = ConstantsOf(spec, b);
  TokenLosses out{Like(b.mask), Like(b.mask), Like<uint8_t>(b.mask)};
  ForEachToken(weights.k, [&](size_t i, size_t t) {
    const TokenConstants& c = constants[i][t];
    const auto l = [&](double lp) { return weights.u[i][t] * TokenLoss(spec, lp, c); };
    bool kink = false;
    out.value[i][t] = l(c.sg);
    out.gradient[i][t] = Slope(l, c.sg, &kink);
    out.kink[i][t] = kink;
  });
  return out;
}

// The KL term of section 7.1, for all tokens of the base mask, with a gradient as above.
inline double KlValue(const std::string& kind, double lp, double ref, double behav, double sg) {
  if (kind == "k1") return K1(lp, ref);
  if (kind == "k2") return K2(lp, ref);
  if (kind == "k3") return K3(lp, ref);
  if (kind == "k2+") return K2Plus(lp, ref, sg);
  return kind == "k3_is" ? K3Is(lp, ref, behav) : NAN;
}

inline TokenLosses KlLosses(const std::string& kind, const Batch& b) {
  TokenLosses out{Like(b.mask), Like(b.mask), Like<uint8_t>(b.mask)};
  ForEachToken(b.mask, [&](size_t i, size_t t) {
    const double sg = b.theta[i][t];
    const auto l = [&](double lp) { return KlValue(kind, lp, b.ref[i][t], b.behav[i][t], sg); };
    bool kink = false;
    out.value[i][t] = l(sg);
    out.gradient[i][t] = Slope(l, sg, &kink);
    out.kink[i][t] = kink;
  });
  return out;
}

}  // namespace sluice::slow
