#include "services/controller/server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/policy/policy.h"
#include "services/controller/admin_service.h"
#include "services/controller/diagnose.h"
#include "services/controller/job_service.h"
#include "services/controller/loop.h"
#include "services/controller/metrics.h"
#include "services/controller/peers.h"
#include "services/controller/registry_service.h"

namespace sluice::controller {
namespace {

class Program : public daemon::Program {
 public:
  Program(const Options& options, const daemon::Host& host, DirLock lock,
          std::unique_ptr<meta::Store> store, std::unique_ptr<Controller> core, Policy policy,
          Clock* clock)
      : clock_(clock),
        policy_(std::move(policy)),
        lock_(std::move(lock)),
        store_(std::move(store)),
        metrics_(host.metrics),
        loop_(std::move(core), store_.get(), clock),
        peers_(options.id),
        registry_(&loop_),
        jobs_(&loop_, &peers_, store_.get(), &policy_),
        admin_(&loop_) {
    // The loop starts here, because calls may come before Start().
    loop_.Start(
        {.set_job = [this](Controller& core, const SetJobCall& call) { SetJob(core, call); },
         .release = [this](const ReleaseCall& call) { peers_.Release(call); },
         .daemon_changed =
             [this](Controller& core, const std::string& daemon) {
               registry_.OnDesiredStateChanged(core, daemon);
             },
         .job_changed = [this](Controller& core,
                               const std::string& job) { jobs_.OnJobChanged(core, job); },
         .diagnose = [this](Controller& core, const std::string& job) { DiagnoseStall(core, job); },
         .tick =
             [this](Controller& core) {
               metrics_.Update(core, {clock_->Now(), clock_->Monotonic()});
               jobs_.SendKeepalives(clock_->Monotonic());
             },
         .transaction_tried =
             [this](const char* outcome, absl::Duration took) {
               metrics_.RecordTransaction(outcome, took);
             }});
  }
  // The gRPC server has ended by now. The loop ends before the members that it calls are destroyed.
  ~Program() override {
    Drain();
    loop_.Stop();
  }

  std::vector<grpc::Service*> services() override { return {&registry_, &jobs_, &admin_}; }
  absl::Status Start(const std::string&, const std::string&) override { return absl::OkStatus(); }

  // The jobs go on under the assignments that their daemons hold, and the next controller takes
  // them up.
  void Drain() override {
    registry_.Shutdown();
    jobs_.Shutdown();
    peers_.Stop();
  }

 private:
  // SetJob() and DiagnoseStall() run on the loop's thread.
  void SetJob(Controller& core, const SetJobCall& call) {
    peers_.SetJob(call, core.jobs().at(call.job).spec,
                  [this, call](absl::StatusOr<SetJobAnswer> answer) {
                    loop_.Post([call, answer = std::move(answer)](Controller& core, Instant now) {
                      core.OnSetJobAnswer(now, call, answer);
                    });
                  });
  }

  void DiagnoseStall(Controller& core, const std::string& job) {
    Diagnose(peers_, core, {clock_->Now(), clock_->Monotonic()}, core.jobs().at(job),
             [this, job](const std::vector<Edge>& chain, const std::vector<std::string>&) {
               loop_.Post([job, text = ChainText(chain)](Controller& core, Instant now) {
                 core.OnDiagnosis(now, job, text);
               });
             });
  }

  Clock* const clock_;
  const Policy policy_;
  const DirLock lock_;
  const std::unique_ptr<meta::Store> store_;
  Metrics metrics_;
  Loop loop_;
  Peers peers_;  // Its callbacks post to the loop, which drops posts after Stop().
  RegistryService registry_;
  JobService jobs_;
  AdminService admin_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<daemon::Program>> MakeController(const Options& options,
                                                                const daemon::Host& host) {
  if (options.data_dir.empty()) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "DATA_DIR", .catalogue = "SLUICE-CTL-0008", .hint = "give --data-dir DIR"},
        "the controller keeps jobs in its data directory, and none was given");
  }
  Policy policy;
  if (!options.policy_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(policy, ReadPolicy(options.policy_file));
  }
  Clock* clock = options.clock != nullptr ? options.clock : Clock::Real();
  SLUICE_RETURN_IF_ERROR(MakeDirs(options.data_dir));
  SLUICE_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(options.data_dir));
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<meta::Store> store,
      meta::Open({.url = absl::StrCat("sqlite:", options.data_dir, "/meta.db")}));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Controller> core,
                          Controller::Load(store.get(), {clock->Now(), clock->Monotonic()}));
  metrics::AddDiskMetrics(host.metrics, "store", [dir = options.data_dir] { return dir; });
  log::Info("store_opened", {{"dir", options.data_dir},
                             {"jobs", core->jobs().size()},
                             {"daemons", core->fleet().daemons().size()}});
  return std::make_unique<Program>(options, host, std::move(lock), std::move(store),
                                   std::move(core), std::move(policy), clock);
}

}  // namespace sluice::controller
