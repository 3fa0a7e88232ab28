#include "services/queue/service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/buffer.h"
#include "common/rpc/status.h"
#include "services/queue/attach.h"
#include "services/queue/convert.h"
#include "services/queue/get_stream.h"
#include "services/queue/jobs.h"
#include "services/queue/metrics.h"
#include "services/queue/streams.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::queue {
namespace {
constexpr absl::Duration kHeartbeat = absl::Seconds(10);
constexpr size_t kPeekRows = 500;       // Most rows of a page.
constexpr size_t kPeekBytes = 4 << 20;  // Most bytes of a page, approximately.

// All methods use the callback API, Put and Get with raw bytes. They are listed one by one, because
// CallbackService has a typed Put that a raw one cannot override.
using Q = v1::QueueService;
using Jobs = Q::WithCallbackMethod_SetJob<Q::WithCallbackMethod_Stats<
    Q::WithCallbackMethod_Peek<Q::WithCallbackMethod_Retask<Q::Service>>>>;
using Shared = Q::WithCallbackMethod_Renew<
    Q::WithCallbackMethod_Release<Q::WithCallbackMethod_Watch<Q::WithRawCallbackMethod_Get<Jobs>>>>;
using Writers = Q::WithCallbackMethod_Admit<Q::WithRawCallbackMethod_Put<Q::WithCallbackMethod_Seal<
    Q::WithCallbackMethod_Drop<Q::WithCallbackMethod_LeaseTasks<Shared>>>>>;
using Base = Q::WithCallbackMethod_AcquireBatch<
    Q::WithCallbackMethod_Apply<Q::WithCallbackMethod_AdvanceVersion<
        Q::WithCallbackMethod_Durable<Q::WithCallbackMethod_Restore<Writers>>>>>;

// A unary call that is under way. It is finished once, by its answer or because its client went
// away: only the one that claims it may finish it. Request and response are destroyed soon after.
class CallReactor : public grpc::ServerUnaryReactor {
 public:
  static std::shared_ptr<CallReactor> Make() {
    auto reactor = std::make_shared<CallReactor>();
    reactor->self_ = reactor;
    return reactor;
  }
  bool Claim() { return !claimed_.exchange(true); }
  void End(const absl::Status& status) {
    if (Claim()) Finish(rpc::ToGrpcStatus(status));
  }
  // `on_cancel` runs if the client goes away before the answer, at once if it has gone already.
  void SetOnCancel(std::function<void()> on_cancel) {
    {
      MutexLock lock(&mu_);
      if (!cancelled_) {
        on_cancel_ = std::move(on_cancel);
        return;
      }
    }
    on_cancel();
  }
  void OnCancel() override {
    std::function<void()> on_cancel;
    {
      MutexLock lock(&mu_);
      cancelled_ = true;
      on_cancel = std::move(on_cancel_);
    }
    if (on_cancel) on_cancel();
    End(absl::CancelledError("the caller is gone"));
  }
  void OnDone() override { self_.reset(); }

 private:
  std::shared_ptr<CallReactor> self_;  // Keeps the reactor alive until OnDone().
  std::atomic<bool> claimed_ = false;
  Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> on_cancel_ ABSL_GUARDED_BY(mu_);
};
}  // namespace

class QueueServer::Impl final : public Base {
 public:
  Impl(JobTable* jobs, Metrics* metrics)
      : jobs_(jobs), metrics_(metrics), heartbeats_([this] { HeartbeatLoop(); }) {}
  ~Impl() override { Stop(); }

  grpc::ServerUnaryReactor* SetJob(grpc::CallbackServerContext* context,
                                   const v1::SetJobRequest* request,
                                   v1::SetJobResponse* response) override {
    const std::shared_ptr<CallReactor> reactor = CallReactor::Make();
    const absl::StatusOr<From> from = ReadCaller(*context, request->call());
    absl::StatusOr<queue::SetJob> input = FromProto(*request);
    if (!from.ok() || !input.ok()) {
      reactor->End(from.ok() ? input.status() : from.status());
    } else {
      jobs_->SetJob(from->job, request->spec().job_name(), from->caller, *std::move(input),
                    [reactor, response](Reply reply) {
                      Answer<SetJobAnswer>(*reactor, reply, [&](const SetJobAnswer& answer) {
                        ToProto(answer, response);
                      });
                    });
    }
    return reactor.get();
  }
  grpc::ServerUnaryReactor* Admit(grpc::CallbackServerContext* context,
                                  const v1::AdmitRequest* request,
                                  v1::AdmitResponse* response) override {
    return Serve<AdmitAnswer>(context, request, response, "Admit");
  }
  grpc::ServerUnaryReactor* Seal(grpc::CallbackServerContext* context,
                                 const v1::SealRequest* request,
                                 v1::SealResponse* response) override {
    return Serve<ItemsAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* Drop(grpc::CallbackServerContext* context,
                                 const v1::DropRequest* request,
                                 v1::DropResponse* response) override {
    return Serve<ItemsAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* LeaseTasks(grpc::CallbackServerContext* context,
                                       const v1::LeaseTasksRequest* request,
                                       v1::LeaseTasksResponse* response) override {
    return Serve<LeaseTasksAnswer>(context, request, response, "LeaseTasks");
  }
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const v1::RenewRequest* request,
                                  v1::RenewResponse* response) override {
    return Serve<RenewAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override {
    return Serve<ReleaseAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* AcquireBatch(grpc::CallbackServerContext* context,
                                         const v1::AcquireBatchRequest* request,
                                         v1::AcquireBatchResponse* response) override {
    return Serve<AcquireBatchAnswer>(context, request, response, "AcquireBatch");
  }
  grpc::ServerUnaryReactor* Apply(grpc::CallbackServerContext* context,
                                  const v1::ApplyRequest* request,
                                  v1::ApplyResponse* response) override {
    return Serve<ApplyAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* AdvanceVersion(grpc::CallbackServerContext* context,
                                           const v1::AdvanceVersionRequest* request,
                                           v1::AdvanceVersionResponse* response) override {
    return Serve<AdvanceVersionAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* Durable(grpc::CallbackServerContext* context,
                                    const v1::DurableRequest* request,
                                    v1::DurableResponse* response) override {
    return Serve<DurableAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* Restore(grpc::CallbackServerContext* context,
                                    const v1::RestoreRequest* request,
                                    v1::RestoreResponse* response) override {
    return Serve<RestoreAnswer>(context, request, response);
  }
  grpc::ServerUnaryReactor* Retask(grpc::CallbackServerContext* context,
                                   const v1::RetaskRequest* request,
                                   v1::RetaskResponse* response) override {
    return Serve<RetaskAnswer>(context, request, response);
  }

  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const v1::StatsRequest* request,
                                  v1::StatsResponse* response) override {
    return Read(context, request->call(), [&](const Job& job, Instant) {
      ToProto(job.Stats(), response);
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* Peek(grpc::CallbackServerContext* context,
                                 const v1::PeekRequest* request,
                                 v1::PeekResponse* response) override {
    return Read(context, request->call(), [&](const Job& job, Instant now) -> absl::Status {
      if (request->what() < v1::PEEK_WHAT_GROUPS || request->what() > v1::PEEK_WHAT_LINEAGE)
        return absl::InvalidArgumentError("the field `what` is unset or unknown");
      uint64_t first = 0;
      if (!request->page().empty() && !absl::SimpleAtoi(request->page(), &first))
        return absl::InvalidArgumentError("the field `page` is not one from an earlier answer");
      std::set<std::string> ids;
      for (const std::string& id : request->ids()) ids.insert(ToHex(id));

      uint64_t place = 0;
      size_t bytes = 0;
      for (const PeekRow& row : job.Peek(static_cast<PeekWhat>(request->what()), request->state(),
                                         now, request->text())) {
        if (!ids.empty() && !ids.contains(row.node.id)) continue;
        if (request->generation() != 0 && row.generation != request->generation()) continue;
        if (place++ < first) continue;
        bytes += row.json.size();
        if (response->rows_size() == kPeekRows ||
            (bytes > kPeekBytes && response->rows_size() > 0)) {
          response->set_page(absl::StrCat(place - 1));
          break;
        }
        ToProto(row, response->add_rows());
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Put(
      grpc::CallbackServerContext* context) override {
    const auto stream = rpc::MakeStream<PutStream>(context, jobs_, &attached_);
    stream->StartReading();
    return stream.get();
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Get(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* bytes) override {
    const auto stream = rpc::MakeStream<GetStream>(context, Clock::Real());
    if (absl::Status status = StartGet(*context, *bytes, stream); !status.ok()) stream->End(status);
    return stream.get();
  }
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override {
    const auto stream = rpc::MakeStream<WatchStream>();
    if (absl::Status status = StartWatch(*context, request->call(), stream); !status.ok())
      stream->End(status);
    return stream.get();
  }

  std::vector<common::v1::WaitEdge> Explain(const std::string& job) {
    std::vector<common::v1::WaitEdge> edges;
    const auto runner = jobs_->Find(job);
    if (!runner.ok()) return edges;
    for (const WaitEdge& edge :
         (*runner)->ReadJob([](const Job& core, Instant now) { return core.Explain(now); }))
      ToProto(edge, &edges.emplace_back());
    return edges;
  }

  absl::Status ShareMemory(const std::string& address) { return attached_.Start(address); }

  void Stop() {
    std::set<std::shared_ptr<WatchStream>> open;
    {
      MutexLock lock(&mu_);
      if (stopped_) return;
      stopped_ = true;
      stop_.NotifyAll();
      open = watches_;
    }
    heartbeats_.join();
    attached_.Stop();
    for (const auto& watch : open) watch->End(absl::UnavailableError("the queue is shutting down"));
  }

 private:
  // Finishes the call with the reply; `write` puts a result into the response.
  template <typename Result, typename Write>
  static void Answer(CallReactor& reactor, const Reply& reply, Write write) {
    if (!reactor.Claim()) return;
    const auto* status = std::get_if<absl::Status>(&reply);
    if (status == nullptr) write(std::get<Result>(reply));
    reactor.Finish(status == nullptr ? grpc::Status::OK : rpc::ToGrpcStatus(*status));
  }

  template <typename Result, typename Request, typename Response>
  grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context, const Request* request,
                                  Response* response, const char* parked = nullptr) {
    const std::shared_ptr<CallReactor> reactor = CallReactor::Make();
    const absl::StatusOr<From> from = ReadCaller(*context, request->call());
    const absl::StatusOr<std::shared_ptr<JobRunner>> runner =
        from.ok() ? jobs_->Find(from->job) : from.status();
    absl::Status status = runner.status();
    if (status.ok()) status = (*runner)->CheckWasListed(from->caller);
    if (!status.ok()) {
      reactor->End(status);
      return reactor.get();
    }
    auto input = FromProto(*request);
    if (!input.ok()) {
      reactor->End(input.status());
      return reactor.get();
    }

    const absl::Time start = absl::Now();
    JobRunner* const job = runner->get();
    const uint64_t call =
        job->Run(from->caller, *std::move(input),
                 [this, reactor, response, start, parked, job](Reply reply) {
                   if (parked != nullptr)
                     metrics_->ObserveWait(job->name(), parked, absl::Now() - start);
                   Answer<Result>(*reactor, reply, [&](const Result& result) {
                     if constexpr (std::is_same_v<Result, AdmitAnswer>) {
                       ToProto(result, job->sampling(), response);
                     } else {
                       ToProto(result, response);
                     }
                   });
                 });
    if (parked != nullptr)
      reactor->SetOnCancel([runner = *runner, call] { runner->ForgetCall(call); });
    return reactor.get();
  }

  template <typename F>
  grpc::ServerUnaryReactor* Read(grpc::CallbackServerContext* context, const common::v1::Call& call,
                                 F f) {
    const absl::StatusOr<From> from = ReadCaller(*context, call);
    absl::Status status = from.status();
    if (status.ok()) {
      const auto runner = jobs_->Find(from->job);
      status = runner.ok() ? (*runner)->ReadJob(f) : runner.status();
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(status));
    return reactor;
  }

  absl::Status StartGet(const grpc::ServerContextBase& context, grpc::ByteBuffer bytes,
                        const std::shared_ptr<GetStream>& stream) {
    v1::GetRequest message;
    SLUICE_RETURN_IF_ERROR(rpc::FromBuffer(&bytes, &message));
    SLUICE_ASSIGN_OR_RETURN(From from, ReadCaller(context, message.call()));
    GetStream::Request request{.caller = from.caller};
    SLUICE_ASSIGN_OR_RETURN(request.runner, jobs_->Find(from.job));
    request.controller = message.lease().empty() && from.caller.incarnation == 0;
    SLUICE_RETURN_IF_ERROR(request.runner->CheckWasListed(request.caller));
    if (!request.controller) {
      SLUICE_ASSIGN_OR_RETURN(request.lease, Id16::FromBytes(message.lease()));
    }
    for (const common::v1::Want& want : message.wants()) {
      SLUICE_ASSIGN_OR_RETURN(request.wants.emplace_back(), FromProto(want));
    }

    SLUICE_RETURN_IF_ERROR(request.runner->ReadJob([&](const Job& job, Instant) {
      return job.Read(request.caller, request.controller, request.lease, {}).status();
    }));

    request.shared = !message.session().empty() &&
                     attached_.Find(message.session(), from.job, from.caller) != nullptr;
    {
      MutexLock lock(&mu_);
      std::erase_if(gets_, [](const std::weak_ptr<GetStream>& get) { return get.expired(); });
      gets_.push_back(stream);
    }
    stream->Start(std::move(request));
    return absl::OkStatus();
  }

  absl::Status StartWatch(const grpc::ServerContextBase& context, const common::v1::Call& call,
                          const std::shared_ptr<WatchStream>& stream) {
    SLUICE_ASSIGN_OR_RETURN(const From from, ReadCaller(context, call));
    SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<JobRunner> runner, jobs_->Find(from.job));
    SLUICE_RETURN_IF_ERROR(
        runner->ReadJob([&](const Job& job, Instant) { return job.CheckKnown(from.caller); }));
    {
      MutexLock lock(&mu_);
      if (stopped_) return absl::UnavailableError("the queue is shutting down");
      watches_.insert(stream);
    }
    const std::weak_ptr<WatchStream> weak = stream;
    WatchStream::Follow(stream, runner, from.caller, [this, weak] {
      MutexLock lock(&mu_);
      watches_.erase(weak.lock());
    });
    return absl::OkStatus();
  }

  void HeartbeatLoop() {
    while (true) {
      std::set<std::shared_ptr<WatchStream>> open;
      std::vector<std::weak_ptr<GetStream>> gets;
      {
        MutexLock lock(&mu_);
        if (!stopped_) stop_.WaitFor(&mu_, kHeartbeat);
        if (stopped_) return;
        open = watches_;
        gets = gets_;
      }
      for (const auto& watch : open) watch->SendHeartbeat();
      for (const auto& weak : gets) {
        if (const auto get = weak.lock()) get->CutIfStuck();
      }
    }
  }

  JobTable* const jobs_;
  Metrics* const metrics_;
  AttachServer attached_{jobs_};
  Mutex mu_;
  CondVar stop_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<WatchStream>> watches_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<GetStream>> gets_ ABSL_GUARDED_BY(mu_);
  std::thread heartbeats_;
};

QueueServer::QueueServer(JobTable* jobs, Metrics* metrics)
    : impl_(std::make_unique<Impl>(jobs, metrics)) {}
QueueServer::~QueueServer() = default;
grpc::Service* QueueServer::service() { return impl_.get(); }
std::vector<common::v1::WaitEdge> QueueServer::Explain(const std::string& job) {
  return impl_->Explain(job);
}
absl::Status QueueServer::ShareMemory(const std::string& address) {
  return impl_->ShareMemory(address);
}
void QueueServer::Stop() { impl_->Stop(); }

}  // namespace sluice::queue
