#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/algorithms/spec.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline LossSpec Plain(std::string kind, std::string prox) {
  return {.kind = kind,
          .prox = prox,
          .clip_high = kind == "dapo" ? 0.28 : 0.2,
          .dual = std::nullopt,
          .tis = std::nullopt,
          .veto = std::nullopt};
}
inline LossSpec Weighted(LossSpec spec, double cap, std::string level = "token") {
  spec.tis = cap;
  spec.tis_level = level;
  return spec;
}
inline LossSpec With(LossSpec spec, void (*edit)(LossSpec&)) {
  edit(spec);
  return spec;
}

struct LossOracle {
  std::string name;
  LossSpec spec;
  std::vector<double> value, grad;
  double token_mean;
  std::vector<float> entropy = {};  // Of each token, for a loss that balances it.
};

inline const std::vector<LossOracle>& LossOracles() {
  static const std::vector<LossOracle> oracles = {
      {"REINFORCE",
       Plain("reinforce", "none"),
       {0.5, 1.2, 2.0, -0.45, -0.8},
       {-1, -1, -1, 0.5, 0.5},
       0.49},
      {"REINFORCE token IS 1.3",
       Weighted(Plain("reinforce", "none"), 1.3),
       {0.610701, 1.56, 2.442806, -0.407177, -0.654985},
       {-1.221403, -1.3, -1.221403, 0.452419, 0.409365},
       0.710269},
      {"REINFORCE sequence IS 2",
       Weighted(Plain("reinforce", "none"), 2, "sequence"),
       {1, 2.4, 4, -0.333368, -0.592655},
       {-2, -2, -2, 0.370409, 0.370409},
       1.294795},
      // This loss has no ratio from prox to theta, so its weight is the total ratio rho here as
      // well.
      {"REINFORCE token IS 1.3, prox recompute",
       Weighted(Plain("reinforce", "recompute"), 1.3),
       {0.610701, 1.56, 2.442806, -0.407177, -0.654985},
       {-1.221403, -1.3, -1.221403, 0.452419, 0.409365},
       0.710269},
      {"REINFORCE sequence IS 2, prox recompute",
       Weighted(Plain("reinforce", "recompute"), 2, "sequence"),
       {1, 2.4, 4, -0.333368, -0.592655},
       {-2, -2, -2, 0.370409, 0.370409},
       1.294795},
      {"PPO, anchor prox",
       Plain("ppo", "recompute"),
       {-1.105171, -1.2, -0.904837, 0.552585, 0.4},
       {-1.105171, 0, -0.904837, 0.552585, 0},
       -0.451485},
      {"DAPO",
       Plain("dapo", "recompute"),
       {-1.105171, -1.28, -0.904837, 0.552585, 0.4},
       {-1.105171, 0, -0.904837, 0.552585, 0},
       -0.467485},
      {"PPO, anchor behav",
       Plain("ppo", "none"),
       {-1.2, -1.2, -1.2, 0.452419, 0.409365},
       {0, 0, 0, 0.452419, 0.409365},
       -0.547643},
      {"decoupled, untruncated",
       Weighted(Plain("ppo", "recompute"), kInf),
       {-1.221403, -1.085805, -1.221403, 0.452419, 0.539944},
       {-1.221403, 0, -1.221403, 0.452419, 0},
       -0.507250},
      {"decoupled, token TIS 1.2",
       Weighted(Plain("ppo", "recompute"), 1.2),
       {-1.221403, -1.085805, -1.085805, 0.452419, 0.48},
       {-1.221403, 0, -1.085805, 0.452419, 0},
       -0.492119},
      {"decoupled, sequence TIS 1.2",
       Weighted(Plain("ppo", "recompute"), 1.2, "sequence"),
       {-1.326205, -1.44, -1.085805, 0.610701, 0.442068},
       {-1.326205, 0, -1.085805, 0.610701, 0},
       -0.559848},
      {"decoupled, loglinear, untruncated",
       Weighted(Plain("ppo", "loglinear"), kInf),
       {-1.221403, -1.349859, -1.2, 0.452419, 0.409365},
       {-1.221403, -1.349859, 0, 0.452419, 0.409365},
       -0.581895},
      // The averaged weights only give other log-probs, so the numbers are those of recompute.
      {"PPO, anchor ewma",
       Plain("ppo", "ewma"),
       {-1.105171, -1.2, -0.904837, 0.552585, 0.4},
       {-1.105171, 0, -0.904837, 0.552585, 0},
       -0.451485},
      // Without bounds the parts of the weight give the whole.
      {"decoupled, exact, untruncated",
       With(Weighted(Plain("ppo", "exact"), kInf), [](LossSpec& s) { s.stale_cap = kInf; }),
       {-1.221403, -1.085805, -1.221403, 0.452419, 0.539944},
       {-1.221403, 0, -1.221403, 0.452419, 0},
       -0.507250},
      // Worked by hand: w_mis is 1.105171 for each token, and w_stale 1, 0.818731, 1.221403 /
      // 0.740818, 1.221403.
      {"decoupled, exact, token TIS 1.05, stale cap 1.1",
       With(Weighted(Plain("ppo", "exact"), 1.05), [](LossSpec& s) { s.stale_cap = 1.1; }),
       {-1.160429, -1.031601, -1.045087, 0.429834, 0.462},
       {-1.160429, 0, -1.045087, 0.429834, 0},
       -0.469057},
      {"GSPO 3e-4, 4e-4",
       With(Plain("gspo", "recompute"), [](LossSpec& s) { s.clip_low = 3e-4, s.clip_high = 4e-4; }),
       {-1.0004, -1.0004, -1.0004, 0.49985, 0.49985},
       {0, 0, 0, 0, 0},
       -0.4003},
      {"GSPO 0.2, 0.2",
       Plain("gspo", "recompute"),
       {-1.142631, -1.142631, -1.142631, 0.409365, 0.409365},
       {-1.142631, -1.142631, -1.142631, 0.409365, 0.409365},
       -0.521832},
      {"CISPO, anchor prox",
       With(Plain("cispo", "recompute"), [](LossSpec& s) { s.cispo_high = 1.28; }),
       {0.552585, 1.536, 1.809675, -0.497327, -0.485225},
       {-1.105171, -1.28, -0.904837, 0.552585, 0.303265},
       0.583142},
      {"SAPO, anchor prox",
       Plain("sapo", "recompute"),
       {-2.105074, -2.482145, -1.904909, 1.004913, 0.758398},
       {-1.10212, -1.405126, -0.902792, 0.550904, 0.290684},
       -0.945763},
      {"IcePop x PPO",
       With(Weighted(Plain("ppo", "recompute"), 1.3),
            [](LossSpec& s) { s.tis_low = 0.9, s.tis_outside = "drop"; }),
       {-1.221403, -1.085805, 0, 0, 0},
       {-1.221403, 0, 0, 0, 0},
       -0.461442},
      {"sequence MIS x PPO",
       With(Weighted(Plain("ppo", "recompute"), 1.2, "sequence"),
            [](LossSpec& s) { s.tis_low = 0.5, s.tis_outside = "drop"; }),
       {0, 0, 0, 0.610701, 0.442068},
       {0, 0, 0, 0.610701, 0},
       0.210554},
      {"geo mask, token TIS 1.2",
       With(Weighted(Plain("ppo", "recompute"), 1.2),
            [](LossSpec& s) { s.geo_low = 0.9, s.geo_high = 1.1; }),
       {0, 0, 0, 0.452419, 0.48},
       {0, 0, 0, 0.452419, 0},
       0.186484},
      {"M2PO",
       With(Plain("ppo", "none"),
            [](LossSpec& s) { s.clip_low = 1, s.clip_high = kInf, s.m2po = 0.04; }),
       {-1.221403, 0, -1.221403, 0.452419, 0.409365},
       {-1.221403, 0, -1.221403, 0.452419, 0.409365},
       -0.316204},
      {"DPPO-TV 0.1",
       With(Plain("dppo_tv", "none"), [](LossSpec& s) { s.dppo_delta = 0.1; }),
       {0.00004, -1.349769, -1.221363, 0.452429, 0.409405},
       {0.0004, -1.349259, -1.221003, 0.452219, 0.408965},
       -0.341851},
      {"AEPO",
       With(Plain("aepo", "recompute"), [](LossSpec& s) { s.clip_high = 0.28; }),
       {-0.965377, -1.603817, -0.904837, 0.622483, 0.298807},
       {-0.965377, -1.603817, -0.904837, 0.622483, 0},
       -0.510548,
       {0.5f, 2, 1, 1.5f, 0}},
  };

  return oracles;
}

}  // namespace sluice
