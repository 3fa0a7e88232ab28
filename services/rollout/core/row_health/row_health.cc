#include "services/rollout/core/row_health/row_health.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::rollout {

void RowHealth::StartVersion(PolicyVersion version) {
  MutexLock lock(&mu_);
  version_ = version;
  rows_ = nonfinite_ = 0;
}

bool RowHealth::CountRows(const StepEvents& events) {
  MutexLock lock(&mu_);
  const bool before = AtFault();
  for (const TokenEvent& event : events.tokens) rows_ += event.version == version_;
  for (const RequestFailure& failure : events.failures) {
    if (failure.version == version_ && ReasonOf(failure.status) == "NONFINITE")
      ++rows_, ++nonfinite_;
  }
  return AtFault() && !before;
}

RowHealth::Counts RowHealth::counts() const {
  MutexLock lock(&mu_);
  return {.rows = rows_, .bad = nonfinite_};
}

absl::Status RowHealth::status() const {
  MutexLock lock(&mu_);
  if (!AtFault()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "version ", version_.str(), " gives logits that are not finite: ", nonfinite_, " of ", rows_,
      " rows; the daemon is not ready until it has loaded another version"));
}

}  // namespace sluice::rollout
