#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/config/spec_problems.h"

namespace google::protobuf {
class Message;
}
namespace sluice {
class Verifier;
}
namespace sluice::job::v1 {
class JobSpec;
class RewardEntry;
}  // namespace sluice::job::v1

namespace sluice::config {

// The parts of CheckJobSpec(), in its order. Each of them expects that the earlier ones found no
// error. The numbers are those of job_file.h.

// Reports single values that are missing, out of bounds, or not one of the allowed words (0007,
// 0008, 0009).
void CheckValues(const job::v1::JobSpec& spec, SpecProblems* problems);
// The same for any other message whose fields have rules.
void CheckMessage(const google::protobuf::Message& message, SpecProblems* problems);
// Checks the rules across values (0010, 0011), and rules for single values that bounds cannot
// express.
void CheckRules(const job::v1::JobSpec& spec, SpecProblems* problems);
// Warns of values that are allowed but are probably a mistake.
void CheckUnusual(const job::v1::JobSpec& spec, SpecProblems* problems);
// Checks that the files and directories that the job reads exist (0012) and can be used (0015,
// 0016), and that the quota holds the tokens of this model (0011). Warns of consequences of the
// values for this model and these rows. A missing file is an error only with `must_exist`.
void CheckFiles(const job::v1::JobSpec& spec, bool must_exist, SpecProblems* problems);

// Checks that queue.keep.quota holds the worst case if a token takes `token_bytes` in the queue
// (0011). CheckRules() calls it for tokens without expert ids, and CheckFiles() for those of the
// model.
void CheckQuota(const job::v1::JobSpec& spec, uint32_t token_bytes, SpecProblems* problems);

// Whether the advantages of the job do not depend on rewards.
bool LearnsFromNoReward(const job::v1::JobSpec& spec);

// Creates the verifier of an entry of `reward.rewards`. INVALID_ARGUMENT: its args are not JSON, or
// do not fit the verifier.
absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifierOf(const job::v1::RewardEntry& entry);

}  // namespace sluice::config
