#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/config/spec_problems.h"

namespace sluice {
class Verifier;
}
namespace sluice::job::v1 {
class JobSpec;
class RewardEntry;
}  // namespace sluice::job::v1

namespace sluice::config {

// The parts of CheckJobSpec, in its order; each expects that those before it found no error.

// Single values that are missing, out of bounds, or none of the words (0007, 0008, 0009).
void CheckValues(const job::v1::JobSpec& spec, SpecProblems* problems);
// Rules across values (0010, 0011) and of single ones that no bound expresses.
void CheckRules(const job::v1::JobSpec& spec, SpecProblems* problems);
// Files and directories that the job reads: that they are there (0012), and can be used (0015,
// 0016). Warns of what the values mean for this model and these rows. A file that is not there is
// an error only where it `must_exist`.
void CheckFiles(const job::v1::JobSpec& spec, bool must_exist, SpecProblems* problems);
// Warns of values that the job can have and that are hardly meant.
void CheckUnusual(const job::v1::JobSpec& spec, SpecProblems* problems);

// The verifier of an entry of `reward.rewards`. INVALID_ARGUMENT: its args are no JSON, or not fit
// for it.
absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifierOf(const job::v1::RewardEntry& entry);

}  // namespace sluice::config
