#pragma once

#include <string>

namespace sluice::job::v1 {
class JobStatus;
class WhyResponse;
}  // namespace sluice::job::v1

namespace sluice::cli {

// Formats what a job waits for: the chain of waits in one line (or one line per link if it is
// longer than `columns`), what will happen by itself, what the user could do, and which daemons did
// not answer. If the job makes progress, the text says so first, and shows what will happen by
// itself only if the chain ends at something that does nothing.
std::string WhyText(const job::v1::JobStatus& job, const job::v1::WhyResponse& why,
                    size_t columns = 140);

}  // namespace sluice::cli
