#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_set.h"
#include "common/weights/fingerprint.h"

namespace sluice {
class Team;
struct WeightDelta;  // common/weights/weight_delta.h

// A set of weights in the form that a DecodeModel computes with. There is no other copy of them:
// this form gives the published bits back. Tensors are numbered as in the layout.
//
// Const functions may be called on several threads at once.
class DecodeWeights {
 public:
  virtual ~DecodeWeights() = default;

  // The published tensors, by number.
  virtual absl::Span<const TensorSpec> specs() const = 0;
  virtual int64_t bytes() const = 0;

  // Takes the weights along a delta, in place: forward (sign +1) or backward (sign -1). The chunks
  // must not overlap, or `team` must have one thread. Returns what the change adds to the
  // fingerprint of each tensor. It is computed from the changed elements alone, so it says nothing
  // about the others.
  virtual std::vector<Fingerprint> Apply(const WeightDelta& delta, int sign, Team* team) = 0;

  // Reads the tensors with these numbers, and returns their fingerprints, in the same order. A bit
  // that flipped in memory shows.
  virtual std::vector<Fingerprint> Fingerprints(absl::Span<const int64_t> tensors,
                                                Team* team) const = 0;
  // Those of all tensors.
  std::vector<Fingerprint> Fingerprints(Team* team) const;

  // RESOURCE_EXHAUSTED: there is not enough memory.
  virtual absl::StatusOr<std::unique_ptr<DecodeWeights>> Copy() const = 0;
  // Gives the published tensors back. RESOURCE_EXHAUSTED: there is not enough memory.
  virtual absl::StatusOr<TensorSet> Unpack() const = 0;

  // Changes a bit, as bad memory may: in a test, or for the failpoint rollout.activate.bitflip.
  virtual void FlipBit() = 0;
};

}  // namespace sluice
