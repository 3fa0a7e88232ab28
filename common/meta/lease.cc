#include "common/meta/lease.h"

#include <algorithm>

namespace sluice::meta {

bool Lease::MayAsk(absl::string_view term, absl::Duration now) {
  if (term == term_ || MayAct(now)) return true;
  if (term != heard_term_) {
    heard_term_ = std::string(term);
    heard_at_ = now;
  }
  return now >= heard_at_ + times_.ttl;
}

void Lease::OnGranted(absl::Duration sent, absl::string_view term) {
  act_until_ = std::max(act_until_, sent + times_.ttl - times_.margin);
  next_ = sent + times_.renew;
  term_ = std::string(term);
}

void Lease::OnNoAnswer(absl::Duration sent) { next_ = sent + times_.poll; }

}  // namespace sluice::meta
