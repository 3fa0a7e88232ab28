#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "services/queue/core/types.h"

namespace sluice::queue {

// How far ahead of the lowest engine groups are admitted (eta_adm), and whether the job's
// max_staleness (eta) can be kept.
//
// By Little's law a trainer is kept busy if eta_adm + 1 >= the mean duration of a rollout in steps.
// Tokens stay young enough if eta - eta_adm covers what reordering adds. So every kWindow steps the
// window looks at two shares: the time that the trainer waited for a batch (idle), and the
// generated tokens that were too old to be trained, masked or dropped (old).
//   idle > 5 %                -> one version wider, up to eta. If the last move had narrowed it,
//                                that was a mistake: it is then not narrowed again for 2 windows,
//                                the next time for 4, .. up to 64.
//   idle < 2 % and old > 2 %  -> narrower, down to 0: by a quarter of a version for each 10 % of
//                                old tokens or part of them.
//   else                      -> as it is.
// Idle time counts more, because a wider window only costs tokens, but an idle trainer stops
// progress. With a fixed eta_adm the shares are measured too, for the alarm. The width depends on
// the events alone; no clock is read.
//
// With bounds on the drift, the width also follows how far off-policy the trained tokens are, as
// the trainer measures it in each step. Drift counts more than idle time, because steps on such
// tokens are no progress.
//   mean ess < min_ess or mean kl > max_kl  -> half as wide, down to 0. It takes up to a width of
//                                steps until batches show the new width, so for as many windows
//                                as that takes drift does not narrow it again.
//   else, idle > 5 %                        -> a quarter of a version wider instead of one.
// Halving and small steps back are what keeps such a loop stable (additive increase, multiplicative
// decrease: Chiu and Jain, Computer Networks and ISDN Systems 17, 1989).
class AdmissionWindow {
 public:
  static constexpr int64_t kWindow = 8;  // In steps.
  static constexpr uint32_t kParts = 4;  // The width is counted in quarters of a version.

  // How far off-policy the tokens of a step were. Unset or NaN: the step has no such number.
  struct Drift {
    std::optional<double> ess;  // Effective sample share of the importance weights.
    std::optional<double> kl;   // Of the trained policy from the one that sampled, nats per token.
  };
  // Unset: it does not matter.
  struct DriftBounds {
    std::optional<double> min_ess, max_kl;
  };

  // What the last whole window showed; zeros before.
  struct Report {
    double idle = 0, old = 0;  // Shares.
    // Mean time of a rollout from first grant to seal, in steps of the trainer without its waits.
    double duration = 0;
    int64_t span = 0;               // 95 % of rollouts were sealed within this many versions.
    std::optional<double> ess, kl;  // Means over the steps that had them.
  };
  // A mean of values that may be missing.
  struct Mean {
    double sum = 0;
    int64_t count = 0;

    void Add(std::optional<double> value);
    std::optional<double> Get() const;
  };
  struct State {
    uint32_t parts = 0;     // eta_adm in quarters of a version.
    bool narrowed = false;  // The last move made it narrower.
    // For how many windows it must not get narrower, and how long the last such time was.
    uint32_t hold = 0, back_off = 1;
    uint32_t settle = 0;      // For how many windows drift must not narrow it.
    bool infeasible = false;  // The last window showed that max_staleness is too small.
    Report report;
    // The current window so far.
    std::optional<Instant> began;
    std::optional<Instant> waiting;  // Since when the trainer waits, if it does.
    absl::Duration idle, durations;
    int64_t steps = 0, sealed = 0;
    uint64_t generated = 0, old = 0;
    Mean ess, kl;
    std::map<int64_t, int64_t> spans;  // Members sealed, by versions since their first grant.
  };

  // `fixed`: eta_adm, which then stays. Without it, eta_adm begins at `eta` and is adapted.
  AdmissionWindow(uint32_t eta, std::optional<uint32_t> fixed, const DriftBounds& bounds);
  AdmissionWindow(uint32_t eta, std::optional<uint32_t> fixed)
      : AdmissionWindow(eta, fixed, DriftBounds{}) {}

  // The width in whole versions: that many steps beyond the lowest engine's version have all their
  // slots. The step after them has only partial_slots(limit) of its `limit` slots.
  int64_t whole() const { return state_.parts / kParts; }
  uint32_t partial_slots(uint32_t limit) const {
    return (limit * (state_.parts % kParts) + kParts - 1) / kParts;
  }
  double versions() const { return static_cast<double>(state_.parts) / kParts; }

  void CountGenerated(uint64_t tokens) { state_.generated += tokens; }
  void CountTooOld(uint64_t tokens) { state_.old += tokens; }
  void CountSealed(absl::Duration took, int64_t versions);
  // Whether the trainer waits for the next step's batch; called after each event.
  void SetWaiting(bool waits, Instant now);
  // A step was applied. True: it ended a window that shows max_staleness to be too small, and the
  // window before did not; MakeAdvice() says so in numbers.
  bool CountStep(Instant now, const Drift& drift);
  bool CountStep(Instant now) { return CountStep(now, Drift{}); }

  // The numbers of the last window in words. If they show that max_staleness is too small, also
  // which one would be enough.
  std::string MakeAdvice() const;
  bool infeasible() const { return state_.infeasible; }
  // Whether the last window was beyond the bounds on the drift, which the width follows; then
  // DescribeDrift() says in words by how much, and how wide it is.
  bool drifts() const;
  std::string DescribeDrift() const;

  const State& state() const { return state_; }
  void Reset(State state) { state_ = std::move(state); }

 private:
  friend struct Access;  // dump.cc
  void AdaptWidth();
  int64_t NeededStaleness() const;

  const uint32_t eta_;
  const bool adapts_;
  const DriftBounds bounds_;
  State state_;
};

}  // namespace sluice::queue
