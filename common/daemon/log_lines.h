#pragma once

#include <vector>

namespace sluice::admin::v1 {
class LogsRequest;
class LogsResponse;
}  // namespace sluice::admin::v1

namespace sluice::daemon {

// The answer of AdminService.Logs: what this process keeps of the job's log lines
// (log/job_lines.h), in messages of about 256 KiB at most. There is at least one.
std::vector<admin::v1::LogsResponse> ReadLogLines(const admin::v1::LogsRequest& request);

}  // namespace sluice::daemon
