#include "services/rollout/generate_stream.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/rpc/text.h"
#include "services/rollout/convert.h"
#include "services/rollout/http/prepare.h"

namespace sluice::rollout {
namespace {

absl::StatusOr<http::ApiRequest> ReadPrompt(const engine::v1::GenerateRequest& request) {
  if (request.prompt().empty() == request.messages().empty()) {
    return absl::InvalidArgumentError(
        request.prompt().empty() ? "neither prompt nor messages are given; give one of them"
                                 : "prompt and messages are given; give one of them");
  }
  if (!request.messages().empty()) return http::ParseMessages(request.messages());

  http::ApiRequest read;
  std::vector<int32_t>& ids = read.prompts.emplace_back().ids;
  for (const uint32_t id : request.prompt()) {
    if (id > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("prompt[", ids.size(), "] is ", id,
                                                     "; token ids are at most ",
                                                     std::numeric_limits<int32_t>::max()));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return read;
}

absl::StatusOr<RequestClass> ReadPriority(engine::v1::Priority priority) {
  switch (priority) {
    case engine::v1::PRIORITY_RESUMED: return RequestClass::kResumed;
    case engine::v1::PRIORITY_TRAIN: return RequestClass::kTrain;
    case engine::v1::PRIORITY_EVAL: return RequestClass::kEval;
    case engine::v1::PRIORITY_UNSPECIFIED:
    case engine::v1::PRIORITY_API: return RequestClass::kApi;
    default:
      return Error(absl::StatusCode::kInvalidArgument, "UNKNOWN_VALUE",
                   absl::StrCat("priority: ", static_cast<int>(priority),
                                " is not a value of Priority that this build knows; leave it out "
                                "for that of the API"));
  }
}

}  // namespace

absl::Status CheckLoaded(const http::Model& model, const std::optional<PolicyVersion>& wanted) {
  const std::optional<PolicyVersion> serving = model.serving();
  if (serving.has_value() && wanted.value_or(*serving) == *serving) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kFailedPrecondition,
      {.reason = "NOT_YET",
       .hint = "Describe tells what is loaded; without a version the loaded one answers",
       .current = serving ? serving->str() : ""},
      absl::StrCat(wanted ? absl::StrCat("version ", wanted->str(), " is asked for; ") : "",
                   serving ? absl::StrCat("version ", serving->str(), " is loaded")
                           : "no published version is loaded yet"));
}

absl::Status CheckSameVersion(const std::optional<PolicyVersion>& wanted, PolicyVersion version) {
  if (!wanted.has_value() || *wanted == version) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kAborted,
                   {.reason = "LOST_RACE",
                    .hint = "ask for the new version, or for none",
                    .current = version.str()},
                   absl::StrCat("version ", wanted->str(), " was asked for; version ",
                                version.str(), " was loaded meanwhile"));
}

absl::Status GenerateStream::Start(const std::shared_ptr<http::Model>& model,
                                   const engine::v1::GenerateRequest& request) {
  if (request.has_version()) version_ = rpc::FromProto(request.version());
  SLUICE_RETURN_IF_ERROR(CheckLoaded(*model, version_));

  SLUICE_ASSIGN_OR_RETURN(http::ApiRequest read, ReadPrompt(request));
  SLUICE_ASSIGN_OR_RETURN(const RequestClass order, ReadPriority(request.priority()));
  if (request.n() > http::kMaxN) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", request.n(), "; at most ", http::kMaxN,
                     " answers are drawn by one call: make more calls"));
  }
  read.n = std::max(1u, request.n());
  read.sampling = FromProto(request.sampling());
  SLUICE_ASSIGN_OR_RETURN(const http::Prepared prepared, http::Prepare(std::move(read), *model));

  // MakeRequests() derives seeds for several prompts. Here the caller's seed is the group's seed
  // itself, so that the draws are those of a worker that got this seed from the queue.
  std::vector<Request> requests = http::MakeRequests(prepared, request.seed(), order);
  for (Request& r : requests) r.seed = request.seed();
  {
    MutexLock lock(&mu_);
    open_ = static_cast<uint32_t>(requests.size());
  }
  SLUICE_ASSIGN_OR_RETURN(guest_,
                          guests_->Add(model, std::move(requests),
                                       [self = shared_from_this()](const StepEvents& events) {
                                         self->TakeEvents(events);
                                       }));
  return absl::OkStatus();
}

void GenerateStream::SendKeepalive() {
  if (pending() == 0) Send({});
}

void GenerateStream::TakeEvents(const StepEvents& events) {
  if (!events.failures.empty()) return End(events.failures.front().status);
  for (const TokenEvent& event : events.tokens) {
    if (absl::Status still = CheckSameVersion(version_, event.version); !still.ok())
      return End(std::move(still));
    MutexLock lock(&mu_);
    AddToken(event);
  }
  Flush();
}

void GenerateStream::AddToken(const TokenEvent& event) {
  // Guests sets `request` to the index of the request in this call, which is its member.
  engine::v1::GenerateResponse& grown = waiting_[static_cast<uint32_t>(event.request)];
  grown.set_member(static_cast<uint32_t>(event.request));
  grown.add_tokens(static_cast<uint32_t>(event.token));
  grown.add_logprobs(event.logprob);

  // Consecutive tokens of one version make one run.
  const bool same = grown.runs_size() > 0 &&
                    rpc::FromProto(grown.runs(grown.runs_size() - 1).version()) == event.version;
  common::v1::VersionRun& run =
      same ? *grown.mutable_runs(grown.runs_size() - 1) : *grown.add_runs();
  if (!same) *run.mutable_version() = rpc::ToProto(event.version);
  run.set_count(run.count() + 1);

  if (event.details != nullptr) grown.mutable_text()->append(event.details->text);
  if (event.finish == FinishReason::kNone) return;
  grown.set_finish(ToProto(event.finish));
  --open_;
}

void GenerateStream::Flush() {
  MutexLock lock(&mu_);
  if (!waiting_.empty() && pending() == 0) {
    engine::v1::GenerateResponse grown = std::move(waiting_.extract(waiting_.begin()).mapped());
    rpc::MakeTextValid(&grown);
    Send(std::move(grown));
  }
  if (waiting_.empty() && open_ == 0) End(absl::OkStatus());
}

}  // namespace sluice::rollout
