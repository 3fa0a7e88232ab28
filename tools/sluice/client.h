#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/config/job_file.h"
#include "common/rpc/cancel.h"
#include "common/rpc/channel.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::cli {

// Makes a channel to the controller at `flag` (--server) if given, else of --context, else at
// $SLUICE_SERVER, else of $SLUICE_CONTEXT or the current context (context.h), else of the fleet
// that `dev up` started, else at 127.0.0.1:7400. Of several addresses, with commas between, it
// finds the one that leads (rpc::ConnectToLeader).
//
// This process is then who a certificate names: that of --context, else of the folder $SLUICE_TLS,
// else of the operator of the fleet that `dev up` started if that is meant, else of the context.
// Errors as ChooseContext(), rpc::Credentials::Load() and rpc::ConnectToLeader().
absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectToController(const std::string& flag);
// The address that ConnectToController() would take, or an empty text if nobody named one and no
// fleet of `dev up` runs.
absl::StatusOr<std::string> FindController(const std::string& flag);

// Prints the warnings about a job file on stderr, one per line.
void PrintWarnings(const JobFile& file);

// Submits a loaded job file. ALREADY_EXISTS: another job has the name.
absl::StatusOr<job::v1::SubmitResponse> Submit(const rpc::Channel& channel, const JobFile& file);
// The state that a person means, such as `running`. INVALID_ARGUMENT: there is no such state.
absl::StatusOr<job::v1::JobState> ParseState(const std::string& text);
// Reads jobs page by page, newest first: those in one of `states`, or all if there are none, and at
// most `limit` of them, or all if it is 0. INVALID_ARGUMENT: there is no such state.
absl::StatusOr<job::v1::ListResponse> ReadJobs(const rpc::Channel& channel,
                                               const std::vector<std::string>& states, int limit);
absl::StatusOr<job::v1::JobStatus> GetJob(const rpc::Channel& channel, const std::string& job);
// What the job's queue counts, which the controller asks it for.
absl::StatusOr<queue::v1::StatsResponse> GetQueueStats(const rpc::Channel& channel,
                                                       const std::string& job);
absl::StatusOr<job::v1::ControlResponse> ControlJob(const rpc::Channel& channel,
                                                    const job::v1::ControlRequest& request);
// Cancels a job and returns its status right after that. It changes nothing if the job is being
// cancelled or was cancelled. FAILED_PRECONDITION: the job has ended, or is ending, in another way.
absl::StatusOr<job::v1::JobStatus> CancelJob(const rpc::Channel& channel, const std::string& job);

// What the queue holds of a job: all rows that Peek returns for the question, page by page.
absl::StatusOr<std::vector<queue::v1::PeekRow>> PeekRows(const rpc::Channel& channel,
                                                         const std::string& job,
                                                         queue::v1::PeekRequest peek);
// What each reward daemon of a job says of its rewards.
absl::StatusOr<job::v1::InspectResponse> DescribeRewards(const rpc::Channel& channel,
                                                         const std::string& job);

// Functions that are called, in order, with what a watch of a job delivers. Each may be empty. A
// step that a new trainer group trains again is delivered again. Such steps can be missing if the
// watch is broken at some time between the old group's last step and the new group's first one.
struct JobHandlers {
  std::function<void(const job::v1::JobStatus&)> status;
  std::function<void(const common::v1::Event&)> event;
  std::function<void(const job::v1::StepReport&)> step;
};

// Follows a job until `until` returns true for its status or the job has ended, and returns that
// status. If the controller goes away and comes back within `patience`, following continues after
// the last event and step, so that none is missing or repeated but for what JobHandlers says.
// CANCELLED: `cancel` was triggered.
// NOT_FOUND: there is no such job.
// UNAVAILABLE: the controller never answered, or not for `patience` by `clock`.
absl::StatusOr<job::v1::JobStatus> FollowJob(
    const rpc::Channel& channel, const std::string& job, rpc::Cancel* cancel,
    absl::Duration patience, const JobHandlers& handlers,
    const std::function<bool(const job::v1::JobStatus&)>& until = {}, Clock* clock = Clock::Real());
// Where reading begins: after this event and this step.
struct ReadFrom {
  uint64_t after_event = 0;
  std::optional<int64_t> after_step;
};
// Reads the events and steps so far, without following the job.
absl::StatusOr<job::v1::JobStatus> ReadJob(const rpc::Channel& channel, const std::string& job,
                                           const JobHandlers& handlers, const ReadFrom& from = {});

bool IsFinal(job::v1::JobState state);
// Whether a person who follows a job should see this event between the progress lines: a warning,
// an error or an evaluation.
bool IsForPeople(const common::v1::Event& event);
// For example "RUNNING".
std::string StateName(job::v1::JobState state);
// For example "digits RECOVERING: queue queue-0 is lost". If the job fails, the message is left
// out, because ErrorLine() shows it.
std::string StateLine(const job::v1::JobStatus& status);
// Describes a job that did not succeed: "error SLUICE-CTL-0010: job digits FAILED: trainer
// trainer-0 failed: ..".
std::string ErrorLine(const job::v1::JobStatus& status);

}  // namespace sluice::cli
