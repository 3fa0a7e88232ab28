#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config/job_file.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {

// The controller of --server, else of $SLUICE_SERVER, else of the fleet that `dev up` started, else
// 127.0.0.1:7400.
std::string ServerAddress(const std::string& flag);

// Prints on stderr what is unusual about a job file, a line each.
void PrintWarnings(const JobFile& file);

// Sends a loaded job file. ALREADY_EXISTS: another job has the name.
absl::StatusOr<job::v1::SubmitResponse> Submit(const rpc::Channel& channel, const JobFile& file);
absl::StatusOr<job::v1::JobStatus> GetJob(const rpc::Channel& channel, const std::string& job);
// Answers with the status right after; a job that has ended stays as it is.
absl::StatusOr<job::v1::JobStatus> CancelJob(const rpc::Channel& channel, const std::string& job);

// What following a job tells, in order; each may be empty.
struct JobHandlers {
  std::function<void(const job::v1::JobStatus&)> status;
  std::function<void(const common::v1::Event&)> event;
  std::function<void(const job::v1::StepReport&)> step;
};

// Follows a job until `until` holds of its status or it is final, and returns that status. A
// controller that goes and comes back within `patience` is picked up behind the last event and
// step: none is missing, none comes twice. CANCELLED: `cancel`. NOT_FOUND: no such job.
// UNAVAILABLE: no controller from the start, or none for `patience`.
absl::StatusOr<job::v1::JobStatus> FollowJob(
    const rpc::Channel& channel, const std::string& job, rpc::Cancel* cancel,
    absl::Duration patience, const JobHandlers& handlers,
    const std::function<bool(const job::v1::JobStatus&)>& until = {});
// Where reading begins: behind this event and this step.
struct ReadFrom {
  uint64_t after_event = 0;
  std::optional<int64_t> after_step;
};
// The events and steps so far.
absl::StatusOr<job::v1::JobStatus> ReadJob(const rpc::Channel& channel, const std::string& job,
                                           const JobHandlers& handlers, const ReadFrom& from = {});

bool IsFinal(job::v1::JobState state);
// Whether those who follow a job see the event between its progress lines: warnings, errors, and
// evaluations.
bool IsForPeople(const common::v1::Event& event);
// "RUNNING".
std::string StateName(job::v1::JobState state);
// "digits RECOVERING: queue queue-0 is lost". Without the message where the job fails: ErrorLine
// has it.
std::string StateLine(const job::v1::JobStatus& status);
// Of a job that did not succeed, "error SLUICE-CTL-0010: job digits FAILED: trainer trainer-0
// failed: ..".
std::string ErrorLine(const job::v1::JobStatus& status);

}  // namespace sluice::cli
