#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

// Whom a rollout asks for weights. All of it is plain computation: times are passed in.
namespace sluice {

// A rollout that works for the job and serves weights to the others.
struct RelayMember {
  std::string id;
  std::string address;  // HOST:PORT.
  bool operator==(const RelayMember&) const = default;
};

// How a version reaches the rollouts; see `weights.fan_out` of the job file.
enum class FanOut { kAuto, kStar, kChain };

// Whether each rollout fetches from the one before it, instead of all from the trainer.
bool UsesChain(FanOut fan_out, size_t rollouts, uint64_t model_bytes);

// Sorts the members by a hash of `key` and their ids (rendezvous hashing): all sort alike without
// talking to each other, and a member that joins or leaves changes nobody else's order. Use the job
// and the policy as the key, so that not the same rollout is always the first.
std::vector<RelayMember> SortIntoChain(std::vector<RelayMember> members, absl::string_view key);

// One that has weights. The trainer has no id here.
inline constexpr absl::string_view kOriginId = "";
// What the folder of weights is called among those that have weights.
inline constexpr absl::string_view kFolderId = "weights.dir";

// Says in which order `self` asks the holders: parent, grandparent, the trainer, and after it all
// others as a last resort, the nearest ones before it first. Those that `is_avoided` are asked last
// of all: they are nobody's parent, which is a place at the end of the chain. Ids of `chain`, or
// kOriginId.
std::vector<std::string> ListHolders(absl::Span<const RelayMember> chain, absl::string_view self,
                                     const std::function<bool(const std::string& id)>& is_avoided);

// Why a holder was left for the next one.
enum class HolderFault {
  kGone,     // The call failed.
  kSilent,   // It sent nothing for too long.
  kSlow,     // It sends at less than half of the usual rate.
  kStarved,  // It is alive, but has itself waited for too long.
  kLied,     // What it sent is not what was asked for.
};
absl::string_view HolderFaultName(HolderFault fault);

// How long to wait for a holder.
struct HolderLimits {
  absl::Duration silent = absl::Seconds(1);     // At least; see HolderHistory::SilenceLimit().
  absl::Duration starved = absl::Seconds(5);    // See HolderFault::kStarved.
  absl::Duration avoid = absl::Seconds(30);     // After kGone, kSilent and kSlow.
  absl::Duration distrust = absl::Minutes(10);  // After kLied.
};

// What a rollout has learned about the holders. Not thread-safe.
class HolderHistory {
 public:
  explicit HolderHistory(HolderLimits limits = {}) : limits_(limits) {}

  // A piece of `bytes` took `took`, without the time in which the holder waited for it itself.
  void AddPiece(const std::string& holder, uint64_t bytes, absl::Duration took);
  // How long the next piece of up to `bytes` may take: the larger of `limits.silent` and four times
  // what is usual.
  absl::Duration SilenceLimit(uint64_t bytes) const;
  // Whether the newest pieces of the holder came at less than half of the median rate of all.
  bool IsSlow(const std::string& holder) const;

  // From now on the holder is avoided for a while, unless the fault is kStarved.
  void AddFault(const std::string& holder, HolderFault fault, absl::Duration now);
  bool IsAvoided(const std::string& holder, absl::Duration now) const;
  const HolderLimits& limits() const { return limits_; }

 private:
  struct Piece {
    std::string holder;
    uint64_t bytes;
    absl::Duration took;
  };
  double MedianRate() const;  // Bytes per second; 0: unknown.

  const HolderLimits limits_;
  std::deque<Piece> pieces_;  // The newest kPieces of all holders.
  std::map<std::string, absl::Duration> avoid_until_;
};

}  // namespace sluice
