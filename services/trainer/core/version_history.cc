#include "services/trainer/core/version_history.h"

#include <utility>

#include "common/base/status.h"
#include "common/models/train_model.h"

namespace sluice::trainer {

absl::Status VersionHistory::Keep(int64_t version, const TrainModel& model) {
  if (most_ == 0) return absl::OkStatus();
  // A step that has failed is begun again.
  if (!versions_.empty() && versions_.back().number == version) return absl::OkStatus();
  SLUICE_CHECK(versions_.empty() || versions_.back().number < version);
  Version kept{.number = version, .weights = {}};
  if (versions_.size() == most_) {
    kept.weights = std::move(versions_.front().weights);
    versions_.pop_front();
  } else {
    SLUICE_ASSIGN_OR_RETURN(kept.weights, TensorSet::Create(model.config().Parameters(dtype_)));
  }
  SLUICE_RETURN_IF_ERROR(model.Store(&kept.weights));
  versions_.push_back(std::move(kept));
  return absl::OkStatus();
}

const TensorSet* VersionHistory::Find(int64_t version) const {
  for (const Version& kept : versions_) {
    if (kept.number == version) return &kept.weights;
  }
  return nullptr;
}

}  // namespace sluice::trainer
