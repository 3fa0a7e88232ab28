#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status.h"
#include "services/trainer/core/sequences.h"
#include "services/trainer/core/shared_passes.h"

namespace sluice {
class Collective;
}

namespace sluice::trainer {

struct UpdateSums;

// Deals sequences to ranks by the number of their tokens: returns the rank of each. The sequences
// of a group are adjacent, and go to one rank, which stores their prompt once. The largest group is
// dealt first, each to the rank with the least load; `loads` [ranks] are the tokens that each rank
// has already, and are brought up to date. The work for sequences of more than `shared_above`
// tokens is shared by all ranks, whichever rank gets them; 0: there are none.
std::vector<int> DealSequences(absl::Span<const Sequence> sequences, int64_t shared_above,
                               std::vector<int64_t>* loads);

// The ranks that train one model together (data parallel), as one of them sees them. Every rank has
// the groups of the whole batch and computes advantages and counts from them, so that all ranks
// have the same; only the forward and backward passes are shared out. With one rank nothing is
// sent.
//
// Errors of all functions are those of Collective.
class Ranks {
 public:
  // `collective` outlives this; null: this is the only rank. `shared_above` as in DealSequences().
  explicit Ranks(Collective* collective, int64_t shared_above = 0);

  int rank() const { return rank_; }
  int world() const { return world_; }
  int64_t shared_above() const { return shared_above_; }
  bool many() const { return collective_ != nullptr; }
  // Nothing but a pass that all ranks make may use it before passes().AwaitOthers().
  Collective& collective() const { return *collective_; }
  SharedPasses& passes() { return passes_; }

  // A new step begins: no rank has work yet.
  void BeginStep();
  // Keeps this rank's share of sequences that all ranks have.
  std::vector<Sequence> Share(std::vector<Sequence> sequences);

  // Adds up the sums of all ranks, once they have made all passes.
  absl::Status Merge(UpdateSums* sums);

  // Values of all ranks, one after the other in order of rank, once they have made all passes.
  template <typename T>
  struct Joined {
    std::vector<T> values;
    std::vector<size_t> first;  // [ranks] where the values of each rank begin.
  };
  template <typename T>
  absl::StatusOr<Joined<T>> Join(std::vector<T> mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    Joined<T> joined;
    if (!many()) {
      joined.values = std::move(mine);
      joined.first = {0};
      return joined;
    }
    SLUICE_ASSIGN_OR_RETURN(
        const std::vector<std::string> parts,
        Gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T)}));
    for (const std::string& part : parts) {
      joined.first.push_back(joined.values.size());
      const T* const from = reinterpret_cast<const T*>(part.data());
      joined.values.insert(joined.values.end(), from, from + part.size() / sizeof(T));
    }
    return joined;
  }

 private:
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine);

  Collective* const collective_;
  SharedPasses passes_;
  const int64_t shared_above_;
  const int rank_, world_;
  std::vector<int64_t> loads_;  // Of the step.
};

}  // namespace sluice::trainer
