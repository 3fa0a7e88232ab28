#include "common/collective/collective.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

absl::Status NoCollectiveHostError(absl::string_view worker, absl::string_view wish) {
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.hint =
           "start it with --collective-host ADDRESS, its address in a network that only trainers "
           "and rollouts reach: ranks exchange gradients and weights over TCP without "
           "encryption, and without certificates, because LibTorch's Gloo has no TLS"},
      absl::StrCat(wish, ", and ", worker, " has no address at which other ranks may reach it"));
}

}  // namespace sluice
