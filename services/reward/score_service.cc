#include "services/reward/score_service.h"

#include <grpcpp/server_context.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/work_threads.h"
#include "common/rpc/access.h"
#include "common/rpc/caller.h"
#include "common/rpc/status.h"
#include "sluice/reward/v1/reward.grpc.pb.h"

namespace sluice::reward {
namespace {

constexpr uint32_t kMostInLine = 64;
constexpr absl::Duration kRetryCall = absl::Seconds(1);

void ToProto(const sluice::Score& score, v1::Score* out) {
  out->set_status(score.status);
  if (score.status == "ok") {
    out->set_reward(score.task_reward);
    out->set_passes(score.passes);
    return;
  }
  out->set_why(score.fault.ok() ? score.info : std::string(score.fault.message()));
  out->set_busy(absl::IsResourceExhausted(score.fault));
}

// One call. It is finished once: by Score(), or, if that was never called, with UNAVAILABLE.
class PendingScore {
 public:
  PendingScore(grpc::CallbackServerContext* context, const v1::ScoreRequest* request,
               v1::ScoreResponse* response)
      : context_(*context),
        request_(*request),
        response_(*response),
        reactor_(*context->DefaultReactor()) {}
  ~PendingScore() {
    if (!finished_) Finish(absl::UnavailableError("the job leaves this daemon; ask another"));
  }
  PendingScore(const PendingScore&) = delete;
  PendingScore& operator=(const PendingScore&) = delete;

  grpc::ServerUnaryReactor* reactor() { return &reactor_; }
  const v1::ScoreRequest& request() const { return request_; }
  const grpc::ServerContextBase& context() const { return context_; }

  void Finish(const absl::Status& status) {
    finished_ = true;
    reactor_.Finish(rpc::ToGrpcStatus(status));
  }

  void Score(const Scorer& scorer) {
    if (context_.IsCancelled()) return Finish(absl::CancelledError("the caller has left"));
    const absl::StatusOr<nlohmann::json> row = ParseRow(request_.row());
    if (!row.ok()) return Finish(row.status());
    std::vector<sluice::Answer> answers;
    for (const v1::Answer& answer : request_.answers()) {
      answers.push_back({.text = answer.text(),
                         .truncated = answer.truncated(),
                         .data_source = request_.source()});
    }

    response_.set_generation(scorer.generation());
    for (const sluice::Score& score : scorer.RunGroup(answers, *row, request_.source()))
      ToProto(score, response_.add_scores());
    Finish(absl::OkStatus());
  }

 private:
  grpc::CallbackServerContext& context_;
  const v1::ScoreRequest& request_;
  v1::ScoreResponse& response_;
  grpc::ServerUnaryReactor& reactor_;
  bool finished_ = false;
};

}  // namespace

class ScoreServer::Impl final : public v1::ScoreService::CallbackService {
 public:
  explicit Impl(const rpc::CallerTable* callers) : callers_(callers) {}

  void SetJob(const std::string& id, Scorer scorer, uint32_t most) {
    auto shared = std::make_shared<const Scorer>(std::move(scorer));
    MutexLock lock(&mu_);
    std::unique_ptr<Job>& job = jobs_[id];
    if (job == nullptr) job = std::make_unique<Job>(most);
    job->scorer = std::move(shared);
  }

  void RemoveJob(const std::string& id) {
    std::unique_ptr<Job> removed;  // Joins its threads without the lock.
    {
      MutexLock lock(&mu_);
      const auto found = jobs_.find(id);
      if (found == jobs_.end()) return;
      removed = std::move(found->second);
      jobs_.erase(found);
    }
  }

  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override {
    const auto call = std::make_shared<PendingScore>(context, request, response);
    if (const absl::Status status = Enqueue(call); !status.ok()) call->Finish(status);
    return call->reactor();
  }

 private:
  struct Job {
    explicit Job(uint32_t most) : most(most), threads(most) {}
    const uint32_t most;
    std::shared_ptr<const Scorer> scorer;  // Guarded by Impl::mu_.
    std::atomic<uint32_t> calls = 0;       // Those in line, and those that are being scored.
    WorkThreads threads;                   // The last member, as its threads use the others.
  };

  absl::Status Enqueue(const std::shared_ptr<PendingScore>& call) {
    const common::v1::JobRef& caller = call->request().call().job();
    SLUICE_RETURN_IF_ERROR(
        rpc::CheckJobRef(call->context(), caller.worker(), caller.incarnation()));
    SLUICE_RETURN_IF_ERROR(callers_->Check(caller.job(), caller.worker(), caller.incarnation(),
                                           {rpc::Role::kRollout}));
    if (call->request().answers().empty())
      return absl::InvalidArgumentError("answers is empty; wanted: at least one answer");

    MutexLock lock(&mu_);
    const auto found = jobs_.find(caller.job());
    if (found == jobs_.end()) {
      return ErrorWith(
          absl::StatusCode::kUnavailable, {.reason = "NOT_LISTED", .retry_after = kRetryCall},
          absl::StrCat("this daemon does not score for job '", caller.job(), "', or not yet"));
    }
    Job* const job = found->second.get();
    if (job->calls >= job->most + kMostInLine) {
      return Error(absl::StatusCode::kResourceExhausted, "BUSY",
                   absl::StrCat(kMostInLine, " calls wait in line; the limit is as many"));
    }
    ++job->calls;
    job->threads.Run([job, call, scorer = job->scorer] {
      call->Score(*scorer);
      --job->calls;
    });
    return absl::OkStatus();
  }

  const rpc::CallerTable* const callers_;
  Mutex mu_;
  std::map<std::string, std::unique_ptr<Job>> jobs_ ABSL_GUARDED_BY(mu_);  // By job id.
};

ScoreServer::ScoreServer(const rpc::CallerTable* callers)
    : impl_(std::make_unique<Impl>(callers)) {}
ScoreServer::~ScoreServer() = default;
grpc::Service* ScoreServer::service() { return impl_.get(); }
void ScoreServer::SetJob(const std::string& job, Scorer scorer, uint32_t most) {
  impl_->SetJob(job, std::move(scorer), most);
}
void ScoreServer::RemoveJob(const std::string& job) { impl_->RemoveJob(job); }

}  // namespace sluice::reward
