#pragma once

#include <string>

namespace sluice::job::v1 {
class JobStatus;
class WhyResponse;
}  // namespace sluice::job::v1

namespace sluice::cli {

// What a job waits for, as people read it: the chain in one line, or where that is longer than
// `columns` a line a link; what comes by itself; what a person could do; who did not answer. A job
// that moves says so first, and what comes by itself only where its chain ends at somebody who does
// nothing.
std::string WhyText(const job::v1::JobStatus& job, const job::v1::WhyResponse& why,
                    size_t columns = 140);

}  // namespace sluice::cli
