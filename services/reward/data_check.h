#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/scoring/scorer.h"

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1

namespace sluice::reward {

// Reads the job's training data and checks which rows can be scored, so that a job whose answers
// cannot be scored ends before it has sampled them. Returns one sentence for each source that has
// rows which cannot be scored.
//
// A file that cannot be read is no error here, because the queue, which draws the rows, reports it.
// INVALID_ARGUMENT UNSCORABLE: no row of a source can be scored; the message gives the reason for
// the first row.
absl::StatusOr<std::vector<std::string>> CheckData(const job::v1::JobSpec& spec,
                                                   const Scorer& scorer);

}  // namespace sluice::reward
