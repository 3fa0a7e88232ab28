#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/queue/core/job.h"
#include "services/queue/store.h"

namespace sluice::queue {

// Called with each alarm of a job. May be empty.
using AlarmHandler = std::function<void(const Alarm& alarm)>;

// Reads all data sources of a job. `alarm` is called for each source with rows that cannot be used
// and are skipped. Errors are those of ReadDataset().
// INVALID_ARGUMENT NO_LEVEL, TOO_MANY_ROWS: the job's sampler cannot work with these rows.
absl::StatusOr<std::shared_ptr<const RowSource>> ReadRowSources(const std::string& job_name,
                                                                const Spec& spec,
                                                                const AlarmHandler& alarm);

// Reads the data sources of a job that goes on after a restart.
// FAILED_PRECONDITION DATA_CHANGED: a source has other rows than when the job began.
absl::StatusOr<std::shared_ptr<const RowSource>> ReadRowSourcesAgain(const JobHeader& header);

}  // namespace sluice::queue
