#include "services/controller/peers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/channel.h"
#include "common/rpc/client.h"
#include "common/rpc/method.h"
#include "common/rpc/stream.h"
#include "services/controller/spec.h"
#include "services/controller/translate.h"
#include "sluice/admin/v1/admin.pb.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::controller {
namespace {
constexpr int kThreads = 8;
// Calls with a longer deadline wait for what people do, such as a plug-in that starts anew.
constexpr absl::Duration kShortCall = absl::Seconds(10);
constexpr int kLongThreads = 16;
// Time limit of one SetJob call. If it passes, the core asks for another call.
constexpr absl::Duration kSetJobTime = absl::Seconds(10);
constexpr absl::Duration kReleaseTime = absl::Seconds(20);
constexpr absl::Duration kExplainTime = absl::Seconds(2);
constexpr int kLinesThreads = 4;
constexpr absl::Duration kLinesTime = absl::Seconds(2);
constexpr size_t kLinesBytes = 4 << 20;  // A daemon keeps less of a job.

// What Explain() gathers while its calls are under way; the call that ends last hands it out.
struct Gathering {
  Mutex mu;
  size_t open ABSL_GUARDED_BY(mu) = 0;
  std::vector<Edge> edges ABSL_GUARDED_BY(mu);
  std::vector<std::string> silent ABSL_GUARDED_BY(mu);
};
}  // namespace

Peers::Peers(std::string id)
    : id_(std::move(id)), pool_(kThreads), long_pool_(kLongThreads), lines_pool_(kLinesThreads) {}

Peers::~Peers() { Stop(); }

void Peers::Stop() {
  cancel_.Trigger();
  pool_.Stop();
  long_pool_.Stop();
  lines_pool_.Stop();
}

void Peers::FillCall(const std::string& job, common::v1::Call* call) const {
  call->mutable_job()->set_job(job);
  call->mutable_job()->set_worker(id_);
}

void Peers::SetJob(const SetJobCall& call, std::string spec,
                   std::function<void(absl::StatusOr<SetJobAnswer>)> done) {
  pool_.Run([this, call, spec = std::move(spec), done = std::move(done)] {
    job::v1::JobSpec job;
    job.ParseFromString(spec);
    queue::v1::SetJobRequest request;
    FillCall(call.job, request.mutable_call());
    request.set_revision(call.revision);
    *request.mutable_spec() = QueueSpecOf(job);
    request.set_phase(static_cast<queue::v1::Phase>(call.phase));
    for (const Worker& worker : call.workers) ToProto(worker, request.add_workers());

    SLUICE_FAILPOINT("controller.assign.before_setjob");
    const absl::StatusOr<std::shared_ptr<rpc::Channel>> channel = channels_.Find(call.address);
    if (!channel.ok()) return done(channel.status());

    queue::v1::SetJobResponse response;
    const absl::Status status =
        rpc::Call(**channel, request, &response,
                  {.deadline = kSetJobTime, .give_up = kSetJobTime, .cancel = &cancel_});
    SLUICE_FAILPOINT("controller.assign.after_setjob");

    if (!status.ok()) {
      log::WriteFor(call.job, log::Level::kWarning, "set_job_failed",
                    {{"job_id", job.name()},
                     {"queue", call.queue},
                     {"revision", call.revision},
                     {"cause", status}});
      return done(status);
    }
    done(SetJobAnswer{response.restored(), FromProto(response.ledger())});
  });
}

void Peers::Release(const ReleaseCall& call) {
  pool_.Run([this, call] {
    queue::v1::ReleaseRequest request;
    FillCall(call.job, request.mutable_call());
    request.set_worker(call.worker);
    request.set_incarnation(call.incarnation);
    request.set_reason(queue::v1::RELEASE_REASON_LOST);
    SLUICE_FAILPOINT("controller.lost.before_release");
    absl::Status status;
    if (const auto channel = channels_.Find(call.address); channel.ok()) {
      queue::v1::ReleaseResponse response;
      status =
          rpc::Call(**channel, request, &response, {.give_up = kReleaseTime, .cancel = &cancel_});
    } else {
      status = channel.status();
    }
    if (!status.ok()) {
      log::WriteFor(call.job, log::Level::kWarning, "release_failed",
                    {{"worker", call.worker},
                     {"queue", call.queue},
                     {"next", "the leases of the worker end when they expire"},
                     {"cause", status}});
    }
  });
}

void Peers::CallDaemon(const std::string& address,
                       std::shared_ptr<google::protobuf::Message> request,
                       std::shared_ptr<google::protobuf::Message> response,
                       std::function<void(absl::Status)> done) {
  const bool is_long = rpc::MethodOf(request->GetDescriptor()).deadline > kShortCall;
  Pool& pool = is_long ? long_pool_ : pool_;
  pool.Run([this, address, request = std::move(request), response = std::move(response),
            done = std::move(done)] {
    const auto channel = channels_.Find(address);
    if (!channel.ok()) return done(channel.status());
    done(rpc::Call(**channel, *request, response.get(), {.cancel = &cancel_}));
  });
}

void Peers::ReadLines(const std::string& address, const admin::v1::LogsRequest& request,
                      std::function<bool()> wanted, LinesRead done) {
  lines_pool_.Run([this, address, request, wanted = std::move(wanted), done = std::move(done)] {
    if (!wanted()) return done(absl::CancelledError("nobody reads the lines any more"));
    const auto channel = channels_.Find(address);
    if (!channel.ok()) return done(channel.status());
    rpc::ClientStream stream(**channel, *admin::v1::LogsRequest::descriptor(), &cancel_,
                             kLinesTime);
    stream.Write(request);
    stream.WritesDone();

    admin::v1::LogsResponse all, next;
    size_t bytes = 0;
    while (bytes <= kLinesBytes && stream.Read(&next)) {
      bytes += next.ByteSizeLong();
      all.MergeFrom(next);
    }
    if (bytes > kLinesBytes) {
      stream.TryCancel();
      (void)stream.Finish();
      return done(absl::ResourceExhaustedError(
          absl::StrCat(address, " sends more than ", kLinesBytes, " B of lines")));
    }
    if (absl::Status status = stream.Finish(); !status.ok()) return done(std::move(status));
    done(std::move(all));
  });
}

void Peers::Explain(const std::string& job, std::vector<Target> targets, Explained done) {
  auto gathering = std::make_shared<Gathering>();
  if (targets.empty()) return done({}, {});
  {
    MutexLock lock(&gathering->mu);
    gathering->open = targets.size();
  }
  for (const Target& target : targets) {
    pool_.Run([this, job, target, gathering, done] {
      admin::v1::ExplainRequest request;
      FillCall(job, request.mutable_call());
      admin::v1::ExplainResponse response;
      absl::Status status;
      if (const auto channel = channels_.Find(target.address); channel.ok()) {
        status = rpc::Call(**channel, request, &response,
                           {.deadline = kExplainTime, .give_up = kExplainTime, .cancel = &cancel_});
      } else {
        status = channel.status();
      }

      std::vector<Edge> edges;
      std::vector<std::string> silent;
      {
        MutexLock lock(&gathering->mu);
        if (!status.ok()) gathering->silent.push_back(target.daemon);
        for (const common::v1::WaitEdge& edge : response.edges()) {
          gathering->edges.push_back(FromProto(edge));
          // A daemon need not name itself in its own nodes.
          if (gathering->edges.back().waiter.daemon.empty())
            gathering->edges.back().waiter.daemon = target.daemon;
        }
        if (--gathering->open > 0) return;
        edges.swap(gathering->edges);
        silent.swap(gathering->silent);
      }
      done(std::move(edges), std::move(silent));
    });
  }
}

}  // namespace sluice::controller
