#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/scoring/scorer.h"

namespace sluice::job::v1 {
class JobSpec;
}  // namespace sluice::job::v1

namespace sluice::reward {

// Reads the job's training data and asks which rows can be scored, so that a job whose answers
// nobody can score ends before it has sampled them. Returns a sentence for each source that has
// rows which cannot be.
//
// INVALID_ARGUMENT UNSCORABLE: a source without one row that can be scored; names the first row.
// A file that cannot be read is no error here: the queue, which draws the rows, says what is wrong.
absl::StatusOr<std::vector<std::string>> CheckData(const job::v1::JobSpec& spec,
                                                   const Scorer& scorer);

}  // namespace sluice::reward
