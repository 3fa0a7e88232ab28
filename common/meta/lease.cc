#include "common/meta/lease.h"

#include <algorithm>

namespace sluice::meta {

void Lease::OnGranted(absl::Duration sent) {
  act_until_ = std::max(act_until_, sent + times_.ttl - times_.margin);
  next_ = sent + times_.renew;
}

void Lease::OnNoAnswer(absl::Duration sent) { next_ = sent + times_.poll; }

}  // namespace sluice::meta
