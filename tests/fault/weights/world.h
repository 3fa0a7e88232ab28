#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/splitmix.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rl/version.h"
#include "common/weights/fingerprint.h"
#include "tests/fault/weights/timeline.h"

namespace sluice {
class WeightPublisher;
class WeightSource;
}  // namespace sluice
namespace sluice::fault {

inline constexpr char kSimJob[] = "00112233445566778899aabbccddeeff";

// What a simulation counts, by name, and what it found to be wrong.
struct Findings {
  std::map<std::string, uint64_t> faults;  // That were injected, by kind.
  std::map<std::string, uint64_t> counts;  // Of anything else.
  std::vector<std::string> wrong;

  void Add(const Findings& other);
  uint64_t faults_in_all() const;
};

// The slow, obvious model of all weights: a table from versions to bits.
struct Model {
  std::map<PolicyVersion, TensorSet> published;
  std::set<PolicyVersion> withdrawn;  // Given up on trial: for the canaries alone.
  std::map<PolicyVersion, std::set<std::string>> canaries;
};

// A simulated process that others call.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual const std::string& name() const = 0;
  // What it serves. Null: the process is dead.
  virtual std::shared_ptr<WeightSource> source() const = 0;
  virtual WeightPublisher* publisher() const { return nullptr; }
  // Which of its processes this is, one after the other.
  virtual int life() const = 0;
  bool alive() const { return source() != nullptr; }

  bool stopped = false;  // By SIGSTOP.
  bool lies = false;     // About what it sends, lists and announces.
};

// What all parts of a simulation share.
struct World {
  explicit World(uint64_t seed) : random(seed) {}

  // Draws with odds of one to `n`.
  bool OneOf(uint64_t n) { return random.Below(n) == 0; }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least + (most - least) * random.Uniform();
  }
  void Inject(const std::string& fault) { ++findings.faults[fault]; }
  void Count(const std::string& what) { ++findings.counts[what]; }
  void Wrong(const std::string& what) {
    findings.wrong.push_back(absl::StrCat(absl::FormatDuration(timeline.Monotonic()), ": ", what));
  }

  bool IsCut(const std::string& a, const std::string& b) const {
    return cut.contains(std::minmax(a, b));
  }
  // Whether a message gets from one to the other now.
  bool Reaches(const Endpoint& a, const Endpoint& b) const {
    return a.alive() && b.alive() && !a.stopped && !b.stopped && !IsCut(a.name(), b.name());
  }
  Endpoint* Find(const std::string& name) const {
    const auto it = endpoints.find(name);
    return it == endpoints.end() ? nullptr : it->second;
  }

  Timeline timeline;
  SplitMix64 random;
  Findings findings;
  Model model;
  std::map<std::string, Endpoint*> endpoints;         // By name.
  std::set<std::pair<std::string, std::string>> cut;  // Pairs of names, sorted.
  bool relays_damaged = false;     // What a relay holds may be wrong, and is then fetched again.
  bool healed = false;             // No faults are injected any more.
  std::string folder;              // `weights.dir`. Empty: there is none.
  PolicyVersion in_folder;         // The newest there, which never falls.
  std::set<std::string> one_host;  // Rollouts on the trainer's host.
};

// A model so small that thousands of engines are made in seconds.
ModelConfig SimModel();

}  // namespace sluice::fault
