#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace sluice::queue {

// Compares the lengths of the members that were sealed with those of the members that were trained,
// to show whether the queue prefers short answers.
struct LengthBin {
  int64_t sealed = 0, sealed_tokens = 0, trained = 0, trained_tokens = 0;

  LengthBin& operator+=(const LengthBin& other) {
    sealed += other.sealed, sealed_tokens += other.sealed_tokens, trained += other.trained,
        trained_tokens += other.trained_tokens;
    return *this;
  }
  // The share of sealed members that were trained. There must be a sealed one.
  double acceptance() const { return static_cast<double>(trained) / static_cast<double>(sealed); }
  // Mean length of the trained members over that of the sealed ones. Unset if there is nothing to
  // compare yet.
  std::optional<double> ratio() const {
    if (trained == 0 || sealed_tokens == 0) return std::nullopt;
    return static_cast<double>(trained_tokens) / static_cast<double>(trained) /
           (static_cast<double>(sealed_tokens) / static_cast<double>(sealed));
  }
};

// Counts for people and metrics. No decision reads them.
struct Counters {
  std::map<std::string, int64_t> fenced;  // Calls, by role.
  // Calls of workers that are not listed or have another role, by the role that the call is for.
  std::map<std::string, int64_t> denied;
  std::map<std::string, int64_t> repeats;         // Calls, by name.
  std::map<std::string, int64_t> leases_expired;  // By kind.
  std::map<std::string, int64_t> violations;      // By rule.
  // Groups by why they were rejected: all_zero, all_one or other by the filter; verdict, or its
  // REASON, by a task's verdict.
  std::map<std::string, int64_t> filtered;
  // Trainable tokens that no batch got, by reason. Masked tokens count too.
  std::map<std::string, int64_t> tokens_dropped;
  // Trajectories by staleness: gained while sampling, gained from seal to cut, and in total.
  std::map<int64_t, int64_t> in_flight, in_queue, at_cut;
  // Members and the tokens they sampled, masked ones included. By source, and by length in eighths
  // of the longest answer allowed.
  std::map<std::string, std::array<LengthBin, 8>> lengths;
  int64_t quarantined = 0, reissued = 0, stalled = 0, rescored = 0, shrunk = 0;
  // Groups of two waves: those that got their second wave, those that ended after their first one,
  // and the members that the latter did not get.
  int64_t second_waves = 0, first_waves_only = 0, answers_saved = 0;
  std::map<std::string, int64_t> alarms;  // By code, with those that were not sent.
};

}  // namespace sluice::queue
