#include "services/controller/server.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/meta/backup.h"
#include "common/metrics/metrics.h"
#include "common/policy/policy.h"
#include "services/controller/admin_service.h"
#include "services/controller/diagnose.h"
#include "services/controller/job_service.h"
#include "services/controller/log_relay.h"
#include "services/controller/loop.h"
#include "services/controller/metrics.h"
#include "services/controller/peers.h"
#include "services/controller/registry_service.h"
#include "services/controller/spec.h"
#include "services/controller/standby.h"
#include "services/controller/ui/ui.h"

namespace sluice::controller {
namespace {

// Hosts by which browsers may open the web page; without a value there is no page.
using UiHosts = std::optional<std::vector<std::string>>;

// Ends a leader that has lost its lease. There is nothing to save, and whatever it still did would
// contradict the new leader. Its supervisor starts it again, as a standby with nothing in memory.
void EndAtOnce(const absl::Status& why) {
  log::Error("lease_lost", {{"cause", why}, {"next", DetailOf(why).hint}});
  std::fprintf(stderr, "sluice-controller: error %s: %s\nhint: %s\n",
               DetailOf(why).catalogue.c_str(), std::string(why.message()).c_str(),
               DetailOf(why).hint.c_str());
  std::_Exit(1);
}

class Program : public daemon::Program {
 public:
  Program(const Options& options, const daemon::Host& host, std::optional<DirLock> lock,
          std::unique_ptr<meta::Store> store, std::unique_ptr<Controller> core, Policy policy,
          UiHosts ui_hosts, Clock* clock)
      : clock_(clock),
        policy_(std::move(policy)),
        lock_(std::move(lock)),
        store_(std::move(store)),
        metrics_(host.metrics),
        loop_(std::move(core), store_.get(), clock),
        peers_(options.id),
        registry_(&loop_),
        logs_(options.id, &loop_, &peers_),
        jobs_(&loop_, &peers_, &logs_, store_.get(), &policy_),
        admin_(&loop_, store_.get()) {
    if (ui_hosts) ui_.emplace(&loop_, &peers_, store_.get(), *std::move(ui_hosts));
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
               const Instant now{clock_->Now(), clock_->Monotonic()};
               metrics_.Update(core, now);
               jobs_.SendKeepalives(now.mono);
               logs_.Tick(core, now);
             },
         .transaction_tried =
             [this](const char* outcome, absl::Duration took) {
               metrics_.RecordTransaction(outcome, took);
             },
         .lost = &EndAtOnce});
  }
  // The gRPC server has ended by now. The loop ends before the members that it calls are destroyed.
  ~Program() override {
    Drain();
    loop_.Stop();
  }

  std::string ready_text() override { return "leader"; }
  std::vector<grpc::Service*> services() override { return {&registry_, &jobs_, &admin_}; }
  std::vector<daemon::HttpRoute> routes() override {
    if (!ui_) return {};
    return {ui_->MakeRoute()};
  }
  absl::Status Start(const std::string&, const std::string&) override { return absl::OkStatus(); }

  // The jobs go on under the assignments that their daemons hold, and the next controller takes
  // them up.
  void Drain() override {
    // Calls that wait for the store would hold up the end until it is back.
    if (loop_.away()) {
      log::Info("ended", {{"while", "the job store was away"}});
      std::_Exit(0);
    }
    registry_.Shutdown();
    jobs_.Shutdown();
    logs_.Shutdown();
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
  const std::optional<DirLock> lock_;  // Of the folder of an SQLite file.
  const std::unique_ptr<meta::Store> store_;
  Metrics metrics_;
  Loop loop_;
  Peers peers_;  // Its callbacks post to the loop, which drops posts after Stop().
  RegistryService registry_;
  LogRelay logs_;
  JobService jobs_;
  AdminService admin_;
  std::optional<Ui> ui_;
};

// Whether the flags of the store belong together.
absl::Status CheckStoreFlags(const meta::Target& store) {
  if (store.url.empty() && !(store.password_file.empty() && store.ca_file.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat(store.password_file.empty() ? "--store-ca" : "--store-password-file",
                     " is given without --store, which names the Redis"));
  }
  // redis://, rediss://, redis+sentinel:// and rediss+sentinel://
  if (store.url.empty() || absl::StartsWith(store.url, "redis")) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.reason = "STORE",
                    .catalogue = "SLUICE-META-0001",
                    .hint = "name a Redis, or leave --store away and give --data-dir DIR"},
                   absl::StrCat("--store ", store.url,
                                ": wanted rediss://HOST[:PORT][/DB] or "
                                "rediss+sentinel://HOST[:PORT],../NAME[/DB], or the same with "
                                "redis on loopback"));
}

// Builds the controller that leads, on a store that is this process's alone.
absl::StatusOr<std::unique_ptr<daemon::Program>> Lead(const Options& options,
                                                      const daemon::Host& host, Policy policy,
                                                      UiHosts ui_hosts, std::optional<DirLock> lock,
                                                      std::unique_ptr<meta::Store> store) {
  SLUICE_ASSIGN_OR_RETURN(const bool half, meta::IsHalfRestored(*store));
  if (half) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "STORE",
                      .catalogue = "SLUICE-META-0016",
                      .hint = "run `sluice meta restore` with --yes again, to its end"},
                     "a restore of the job store was broken off, so jobs are missing in it");
  }
  Clock* clock = options.clock != nullptr ? options.clock : Clock::Real();
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Controller> core,
                          Controller::Load(store.get(), {clock->Now(), clock->Monotonic()}));
  core->SetQuotas(QuotasOf(policy));
  log::Info("leading", {{"store", options.store.url.empty() ? options.data_dir : options.store.url},
                        {"jobs", core->jobs().size()},
                        {"daemons", core->fleet().daemons().size()}});
  return std::make_unique<Program>(options, host, std::move(lock), std::move(store),
                                   std::move(core), std::move(policy), std::move(ui_hosts), clock);
}

}  // namespace

absl::StatusOr<std::unique_ptr<daemon::Program>> MakeController(const Options& options,
                                                                const daemon::Host& host) {
  SLUICE_RETURN_IF_ERROR(CheckStoreFlags(options.store));
  Policy policy;
  if (!options.policy_file.empty()) {
    SLUICE_ASSIGN_OR_RETURN(policy, ReadPolicy(options.policy_file));
  }
  UiHosts ui_hosts;
  if (options.ui != "none") {
    SLUICE_ASSIGN_OR_RETURN(ui_hosts, ParseUiHosts(options.ui));
  }
  if (!options.store.url.empty()) {
    return std::make_unique<Standby>(
        options.store, host,
        [options, policy, ui_hosts](const daemon::Host& host, std::unique_ptr<meta::Store> store) {
          return Lead(options, host, policy, ui_hosts, std::nullopt, std::move(store));
        });
  }

  if (options.data_dir.empty()) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "DATA_DIR",
         .catalogue = "SLUICE-CTL-0008",
         .hint = "give --data-dir DIR, or --store with a Redis"},
        "the controller keeps jobs in its data directory or in a Redis, and none was given");
  }
  SLUICE_RETURN_IF_ERROR(MakeDirs(options.data_dir));
  SLUICE_ASSIGN_OR_RETURN(DirLock lock, DirLock::Acquire(options.data_dir));
  SLUICE_ASSIGN_OR_RETURN(
      std::unique_ptr<meta::Store> store,
      meta::Open({.url = absl::StrCat("sqlite:", options.data_dir, "/meta.db")}));
  metrics::AddDiskMetrics(host.metrics, "store", [dir = options.data_dir] { return dir; });
  return Lead(options, host, std::move(policy), std::move(ui_hosts), std::move(lock),
              std::move(store));
}

}  // namespace sluice::controller
