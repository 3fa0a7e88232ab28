#include "services/trainer/core/shared_passes.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "common/base/status.h"
#include "common/collective/collective.h"

namespace sluice::trainer {

int SharedPasses::AddKind(std::function<absl::Status()> take_part) {
  SLUICE_CHECK(collective_ != nullptr);
  take_part_.push_back(std::move(take_part));
  return static_cast<int>(take_part_.size()) - 1;
}

absl::Status SharedPasses::Begin(int kind) {
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const int next, Agree(kind));
    if (next == kind) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(take_part_[next]());
  }
}

absl::Status SharedPasses::AwaitOthers() {
  if (take_part_.empty()) return absl::OkStatus();
  const int none = static_cast<int>(take_part_.size());
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const int next, Agree(none));
    if (next == none) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(take_part_[next]());
  }
}

absl::StatusOr<int> SharedPasses::Agree(int wanted) {
  std::vector<double> ranks(take_part_.size() + 1, 0.0);  // That want each kind.
  ranks[wanted] = 1;
  SLUICE_RETURN_IF_ERROR(collective_->Sum(absl::MakeSpan(ranks)));
  const auto first = std::find_if(ranks.begin(), ranks.end(), [](double n) { return n > 0; });
  return static_cast<int>(first - ranks.begin());
}

}  // namespace sluice::trainer
