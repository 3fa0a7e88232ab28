#include "services/controller/job_service.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/failpoint.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/policy/policy.h"
#include "common/rpc/status.h"
#include "common/rpc/text.h"
#include "services/controller/callers.h"
#include "services/controller/control.h"
#include "services/controller/core/codec.h"
#include "services/controller/diagnose.h"
#include "services/controller/log_relay.h"
#include "services/controller/reward_questions.h"
#include "services/controller/spec.h"
#include "services/controller/translate.h"
#include "services/controller/watcher.h"
#include "services/controller/weights_questions.h"

namespace sluice::controller {
namespace {

constexpr size_t kLongestPage = 1000;  // Most jobs on a page of List.

absl::Status NotBuilt(absl::string_view what) {
  return Error(absl::StatusCode::kUnimplemented, "NOT_BUILT",
               absl::StrCat(what, " is not implemented in this build"));
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpcStatus(status));
  return reactor;
}

absl::StatusOr<SubmitInput> InputOf(const job::v1::SubmitRequest& request, const Person& person,
                                    const Policy& policy) {
  if (request.hash().size() != 32) {
    return Error(
        absl::StatusCode::kInvalidArgument, "HASH",
        absl::StrCat("the field hash has ", request.hash().size(), " bytes, but a SHA-256 has 32"));
  }
  if (request.spec().name() != request.name()) {
    return Error(absl::StatusCode::kInvalidArgument, "NAME",
                 absl::StrCat("the request names the job \"", request.name(),
                              "\", but its spec names it \"", request.spec().name(), "\""));
  }
  if (!request.request().empty() && request.request().size() != 16) {
    return Error(absl::StatusCode::kInvalidArgument, "REQUEST",
                 absl::StrCat("the field request has ", request.request().size(),
                              " bytes, but must have 16 or be empty"));
  }
  SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> warnings, CheckSpec(request.spec(), policy));
  const Policy::Quota* const quota = FindQuotaOf(policy, person);
  if (quota != nullptr) SLUICE_RETURN_IF_ERROR(CheckQuota(*quota, person.name, request.spec()));
  return SubmitInput{.id = ToHex(RandomId16()),
                     .name = request.name(),
                     .hash = ToHex(request.hash()),
                     .spec = request.spec().SerializeAsString(),
                     .needs = NeedsOf(request.spec()),
                     .request = ToHex(request.request()),
                     .warnings = std::move(warnings),
                     .owner = person.name,
                     .only_own = person.submitter(),
                     .max_jobs = quota == nullptr ? std::nullopt : quota->jobs};
}

// Adds to the conflict what differs, if the spec of the existing job can be read.
absl::Status WithDifference(const absl::Status& conflict, const std::string& stored,
                            const job::v1::JobSpec& submitted) {
  job::v1::JobSpec before;
  if (!before.ParseFromString(stored)) return conflict;
  return ErrorWith(conflict.code(), DetailOf(conflict),
                   absl::StrCat(conflict.message(), ". ", Difference(before, submitted)));
}

// The job of this id or name, if the person may see and control it.
absl::StatusOr<const Job*> FindFor(const Person& person, const Controller& core,
                                   const std::string& id_or_name) {
  SLUICE_ASSIGN_OR_RETURN(const Job* job, core.Find(id_or_name));
  SLUICE_RETURN_IF_ERROR(CheckOwner(person, *job, id_or_name));
  return job;
}

// Fills in one page of the jobs that the person may see. A page begins below the order of the last
// job of the page before, so jobs that are submitted meanwhile move nothing.
absl::Status ListJobs(const Person& person, const Controller& core,
                      const job::v1::ListRequest& request, job::v1::ListResponse* response) {
  int64_t below = std::numeric_limits<int64_t>::max();
  if (!request.page().empty() && !absl::SimpleAtoi(request.page(), &below))
    return absl::InvalidArgumentError(absl::StrCat("page \"",
                                                   absl::CEscape(request.page().substr(0, 40)),
                                                   "\" was not given by an answer of List"));
  const size_t limit =
      request.limit() == 0 ? kLongestPage : std::min<size_t>(request.limit(), kLongestPage);

  std::set<absl::string_view> states;  // Empty: all.
  for (const int state : request.states())
    states.insert(absl::StripPrefix(job::v1::JobState_Name(static_cast<job::v1::JobState>(state)),
                                    "JOB_STATE_"));

  std::vector<const Job*> jobs;
  for (const auto& [id, job] : core.jobs()) {
    if (!MaySee(person, job)) continue;
    if (!states.empty() && !states.contains(StateName(job.record.state))) continue;
    response->set_total(response->total() + 1);
    if (job.record.order < below) jobs.push_back(&job);
  }

  const auto end = jobs.begin() + static_cast<std::ptrdiff_t>(std::min(limit, jobs.size()));
  std::partial_sort(jobs.begin(), end, jobs.end(),
                    [](const Job* a, const Job* b) { return a->record.order > b->record.order; });
  for (auto job = jobs.begin(); job != end; ++job) ToProto(**job, response->add_jobs());
  if (end != jobs.end() && end != jobs.begin())
    response->set_next(absl::StrCat((*std::prev(end))->record.order));
  return absl::OkStatus();
}

// GONE or NOT_YET: no queue has the data of the job any more, or none has it yet.
absl::Status CheckQueueHas(const Job& job, const std::string& asked) {
  if (job.record.stage >= Stage::kFreeing) {
    return Error(absl::StatusCode::kNotFound, "GONE",
                 absl::StrCat("job ", asked,
                              " has ended and its queue data is freed; its result has the final "
                              "ledger"));
  }
  if (!job.assign.opened) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_YET",
                 absl::StrCat("no queue has job ", asked, " yet, which is ",
                              StateName(job.record.state), "; ask again once it is RUNNING"));
  }
  return absl::OkStatus();
}

// Ends a call. The text of the answer is made valid first, because it may contain what daemons,
// their files and libraries said.
void Finish(grpc::ServerUnaryReactor* reactor, google::protobuf::Message* response,
            const absl::Status& status) {
  rpc::MakeTextValid(response);
  reactor->Finish(rpc::ToGrpcStatus(status));
}

}  // namespace

void JobService::Describe(const Job& job, job::v1::JobStatus* out) const {
  ToProto(job, out);
  // The spec of a job that is over is only in the store.
  if (!job.spec.empty()) {
    out->mutable_spec()->ParseFromString(job.spec);
  } else if (const auto spec = store_->Get(JobKey(job.record.id, "spec")); spec.ok()) {
    out->mutable_spec()->ParseFromString(spec->value);
  }

  if (!IsFinal(job.record.state)) return;
  const std::string key = JobKey(job.record.id, "result");
  const auto entry = store_->Get(key);
  if (!entry.ok()) return;
  if (const auto result = Decode<Result>(key, entry->value); result.ok())
    ToProto(*result, out->mutable_result());
}

grpc::ServerUnaryReactor* JobService::Submit(grpc::CallbackServerContext* context,
                                             const job::v1::SubmitRequest* request,
                                             job::v1::SubmitResponse* response) {
  const Person person = PersonOf(*context);
  absl::StatusOr<SubmitInput> input = InputOf(*request, person, *policy_);
  if (!input.ok()) {
    LogAudit(person, "Submit", {.text = request->name()}, input.status());
    return Refuse(context, input.status());
  }

  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto output = std::make_shared<absl::StatusOr<SubmitOutput>>(absl::UnknownError("not done"));
  loop_->Post([input = *std::move(input), output](
                  Controller& core, Instant now) { *output = core.Submit(now, input); },
              [this, person, reactor, request, response, output](Controller& core) {
                SLUICE_FAILPOINT("controller.submit.after_store");
                absl::Status status = output->status();
                AuditTarget target = {.text = request->name()};
                if (status.ok()) {
                  target.job_id = (*output)->job;
                  target.job_name = request->name();
                  response->set_repeat((*output)->repeat);
                  response->set_created(!(*output)->repeat);
                  response->set_job((*output)->job);
                  response->set_previous((*output)->previous);
                  Describe(core.jobs().at((*output)->job), response->mutable_status());
                } else if (!DetailOf(status).current.empty()) {
                  const auto stored = store_->Get(JobKey(DetailOf(status).current, "spec"));
                  if (stored.ok()) status = WithDifference(status, stored->value, request->spec());
                }
                LogAudit(person, "Submit", target, status);
                Finish(reactor, response, status);
              });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::Control(grpc::CallbackServerContext* context,
                                              const job::v1::ControlRequest* request,
                                              job::v1::ControlResponse* response) {
  const Person person = PersonOf(*context);
  if (const absl::Status status = CheckControl(*request); !status.ok()) {
    LogAudit(person, VerbName(request->verb()), {.text = request->job()}, status);
    return Refuse(context, status);
  }
  const bool by_daemon = request->verb() == job::v1::VERB_ROLLBACK ||
                         request->verb() == job::v1::VERB_RESCORE ||
                         request->verb() == job::v1::VERB_READMIT;
  if (by_daemon) return ControlByDaemon(context, request, response);

  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto repeat = std::make_shared<absl::StatusOr<bool>>(absl::UnknownError("not done"));
  auto target = std::make_shared<AuditTarget>(AuditTarget{.text = request->job()});
  loop_->Post(
      [this, person, request, response, repeat, target](Controller& core, Instant now) {
        const absl::StatusOr<const Job*> job = FindFor(person, core, request->job());
        if (!job.ok()) {
          *repeat = job.status();
          return;
        }
        target->job_id = (*job)->record.id;
        target->job_name = (*job)->record.name;
        // A deleted job has no status afterwards.
        if (request->verb() == job::v1::VERB_DELETE) Describe(**job, response->mutable_status());
        *repeat = DoVerb(core, now, *store_, *policy_, person, **job, *request);
      },
      [this, person, reactor, request, response, repeat, target](Controller& core) {
        if (repeat->ok()) {
          response->set_repeat(**repeat);
          const absl::StatusOr<const Job*> job = core.Find(request->job());
          if (request->verb() != job::v1::VERB_DELETE && job.ok())
            Describe(**job, response->mutable_status());
        }
        LogAudit(person, VerbName(request->verb()), *target, repeat->status());
        Finish(reactor, response, repeat->status());
      });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::ControlByDaemon(grpc::CallbackServerContext* context,
                                                      const job::v1::ControlRequest* request,
                                                      job::v1::ControlResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([](Controller&, Instant) {},
              [this, person = PersonOf(*context), reactor, request, response](Controller& core) {
                AuditTarget target{.text = request->job()};
                const absl::StatusOr<const Job*> job = FindFor(person, core, request->job());
                if (!job.ok()) {
                  LogAudit(person, VerbName(request->verb()), target, job.status());
                  return reactor->Finish(rpc::ToGrpcStatus(job.status()));
                }
                target.job_id = (*job)->record.id;
                target.job_name = (*job)->record.name;
                const auto finish = [person, target, reactor, request,
                                     response](const absl::Status& status) {
                  LogAudit(person, VerbName(request->verb()), target, status);
                  Finish(reactor, response, status);
                };
                Describe(**job, response->mutable_status());
                if (request->verb() != job::v1::VERB_ROLLBACK) {
                  if (const absl::Status open = CheckQueueHas(**job, request->job()); !open.ok())
                    return finish(open);
                  return RetaskJob(*peers_, core, **job, *request,
                                   [response, finish](const absl::Status& status, uint32_t count) {
                                     response->set_count(count);
                                     finish(status);
                                   });
                }
                if (!request->has_step()) {
                  return finish(absl::InvalidArgumentError(
                      "ROLLBACK needs `step`, the version to go back to"));
                }
                RollBackWeights(*peers_, core, **job, *request, finish);
              });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::Get(grpc::CallbackServerContext* context,
                                          const job::v1::GetRequest* request,
                                          job::v1::JobStatus* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // The work is empty: `then` alone runs, after everything before it is stored.
  loop_->Post([](Controller&, Instant) {},
              [this, person = PersonOf(*context), reactor, request, response](Controller& core) {
                const absl::StatusOr<const Job*> job = FindFor(person, core, request->job());
                if (job.ok()) Describe(**job, response);
                Finish(reactor, response, job.status());
              });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::List(grpc::CallbackServerContext* context,
                                           const job::v1::ListRequest* request,
                                           job::v1::ListResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([](Controller&, Instant) {},
              [person = PersonOf(*context), reactor, request, response](Controller& core) {
                Finish(reactor, response, ListJobs(person, core, *request, response));
              });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::Why(grpc::CallbackServerContext* context,
                                          const job::v1::WhyRequest* request,
                                          job::v1::WhyResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto asked = std::make_shared<Instant>();
  loop_->Post(
      [asked](Controller&, Instant now) { *asked = now; },
      [this, person = PersonOf(*context), reactor, request, response, asked](Controller& core) {
        const absl::StatusOr<const Job*> job = FindFor(person, core, request->job());
        if (!job.ok()) return reactor->Finish(rpc::ToGrpcStatus(job.status()));
        response->set_moving(core.StepsAdvance(*asked, **job));
        Diagnose(*peers_, core, *asked, **job,
                 [reactor, response](const std::vector<Edge>& chain,
                                     const std::vector<std::string>& silent) {
                   for (const Edge& edge : chain) ToProto(edge, response->add_chain());
                   response->mutable_silent()->Add(silent.begin(), silent.end());
                   Finish(reactor, response, absl::OkStatus());
                 });
      });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::PinWeights(grpc::CallbackServerContext* context,
                                                 const job::v1::PinWeightsRequest* request,
                                                 job::v1::PinWeightsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([](Controller&, Instant) {},
              [this, person = PersonOf(*context), reactor, request, response](Controller& core) {
                AuditTarget target{.text = request->job()};
                const absl::StatusOr<const Job*> job = FindFor(person, core, request->job());
                if (!job.ok()) {
                  LogAudit(person, "PinWeights", target, job.status());
                  return reactor->Finish(rpc::ToGrpcStatus(job.status()));
                }
                target.job_id = (*job)->record.id;
                target.job_name = (*job)->record.name;
                controller::PinWeights(
                    *peers_, core, **job, *request,
                    [person, target, reactor, response](const absl::Status& status) {
                      LogAudit(person, "PinWeights", target, status);
                      Finish(reactor, response, status);
                    });
              });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::ReloadRewards(grpc::CallbackServerContext* context,
                                                    const job::v1::ReloadRewardsRequest* request,
                                                    job::v1::ReloadRewardsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post(
      [](Controller&, Instant) {},
      [this, person = PersonOf(*context), reactor, request, response](Controller& core) {
        AuditTarget target{.text = request->job()};
        const absl::StatusOr<const Job*> job = FindFor(person, core, request->job());
        if (!job.ok()) {
          LogAudit(person, "ReloadRewards", target, job.status());
          return reactor->Finish(rpc::ToGrpcStatus(job.status()));
        }
        target.job_id = (*job)->record.id;
        target.job_name = (*job)->record.name;
        controller::ReloadRewards(
            *peers_, core, **job, request->reward(),
            [person, target, reactor, response](
                const absl::Status& status, const std::vector<job::v1::RewardReloaded>& rewards) {
              LogAudit(person, "ReloadRewards", target, status);
              response->mutable_rewards()->Add(rewards.begin(), rewards.end());
              Finish(reactor, response, status);
            });
      });
  return reactor;
}

grpc::ServerUnaryReactor* JobService::Inspect(grpc::CallbackServerContext* context,
                                              const job::v1::InspectRequest* request,
                                              job::v1::InspectResponse* response) {
  using Request = job::v1::InspectRequest;
  const auto question = request->question_case();
  if (question == Request::QUESTION_NOT_SET)
    return Refuse(
        context, absl::InvalidArgumentError("the request has no question; set queue_stats, "
                                            "queue_peek, weights_list, weights_verify or rewards"));

  const Person person = PersonOf(*context);
  if (person.role == rpc::Role::kViewer && request->queue_peek().text()) {
    return Refuse(context, ErrorWith(absl::StatusCode::kPermissionDenied,
                                     {.reason = "NO_TEXT",
                                      .catalogue = "SLUICE-AUTH-0013",
                                      .hint = "leave out --show-text, or ask the job's owner"},
                                     "a viewer does not see the text of prompts and answers"));
  }

  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([](Controller&, Instant) {},
              [this, person, reactor, request, response, question](Controller& core) {
                const absl::StatusOr<const Job*> job = FindFor(person, core, request->job());
                if (!job.ok()) return reactor->Finish(rpc::ToGrpcStatus(job.status()));

                if (const absl::Status open = CheckQueueHas(**job, request->job()); !open.ok())
                  return reactor->Finish(rpc::ToGrpcStatus(open));

                if (question == Request::kRewards) {
                  return DescribeRewards(
                      *peers_, core, **job,
                      [reactor, response](const std::vector<job::v1::RewardDescribed>& rewards) {
                        response->mutable_rewards()->Add(rewards.begin(), rewards.end());
                        Finish(reactor, response, absl::OkStatus());
                      });
                }
                if (question == Request::kWeightsList) {
                  return ListWeights(*peers_, core, **job, request->weights_list(),
                                     [reactor, response](const absl::Status& status,
                                                         weights::v1::ListResponse list) {
                                       response->mutable_weights_list()->Swap(&list);
                                       Finish(reactor, response, status);
                                     });
                }
                if (question == Request::kWeightsVerify) {
                  return VerifyWeights(
                      *peers_, core, **job, request->weights_verify(),
                      [reactor, response](const std::vector<job::v1::RolloutVerified>& verified) {
                        response->mutable_verified()->Add(verified.begin(), verified.end());
                        Finish(reactor, response, absl::OkStatus());
                      });
                }

                const std::string address = core.AddressOf((*job)->assign.queue),
                                  id = (*job)->record.id;
                if (question == Request::kQueueStats) {
                  auto asked = std::make_shared<queue::v1::StatsRequest>(request->queue_stats());
                  auto answer = std::make_shared<queue::v1::StatsResponse>();
                  peers_->FillCall(id, asked->mutable_call());
                  return peers_->CallDaemon(address, asked, answer,
                                            [reactor, response, answer](absl::Status status) {
                                              response->mutable_queue_stats()->Swap(answer.get());
                                              Finish(reactor, response, status);
                                            });
                }

                auto asked = std::make_shared<queue::v1::PeekRequest>(request->queue_peek());
                auto answer = std::make_shared<queue::v1::PeekResponse>();
                peers_->FillCall(id, asked->mutable_call());
                peers_->CallDaemon(address, asked, answer,
                                   [reactor, response, answer](absl::Status status) {
                                     response->mutable_queue_peek()->Swap(answer.get());
                                     Finish(reactor, response, status);
                                   });
              });
  return reactor;
}

grpc::ServerWriteReactor<job::v1::WatchResponse>* JobService::Watch(
    grpc::CallbackServerContext* context, const job::v1::WatchRequest* request) {
  auto watcher = std::make_shared<Watcher>(this, PersonOf(*context), *request);
  bool shutting_down = false;
  {
    MutexLock lock(&mu_);
    watchers_[watcher.get()] = watcher;
    shutting_down = shutting_down_;
  }

  if (request->logs()) {
    watcher->End(NotBuilt("`logs` of Watch, instead of which there is the call Logs,"));
  } else if (shutting_down) {
    watcher->End(absl::UnavailableError("the controller is shutting down"));
  } else {
    loop_->Post([](Controller&, Instant) {}, [watcher](Controller& core) { watcher->Begin(core); });
  }
  return watcher.get();
}

grpc::ServerWriteReactor<job::v1::LogsResponse>* JobService::Logs(
    grpc::CallbackServerContext* context, const job::v1::LogsRequest* request) {
  return logs_->Start(PersonOf(*context), *request);
}

void JobService::OnJobChanged(Controller& core, const std::string& job) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mu_);
    for (const auto& [key, watcher] : watchers_) watchers.push_back(watcher);
  }
  for (const std::shared_ptr<Watcher>& watcher : watchers) {
    if (watcher->job() == job) watcher->SendNext(core);
  }
}

void JobService::SendKeepalives(absl::Duration now) {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mu_);
    for (const auto& [key, watcher] : watchers_) watchers.push_back(watcher);
  }
  for (const std::shared_ptr<Watcher>& watcher : watchers) watcher->SendKeepalive(now);
}

void JobService::Shutdown() {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    MutexLock lock(&mu_);
    shutting_down_ = true;
    for (const auto& [key, watcher] : watchers_) watchers.push_back(watcher);
  }
  for (const std::shared_ptr<Watcher>& watcher : watchers)
    watcher->End(absl::UnavailableError("the controller is shutting down"));
}

}  // namespace sluice::controller
