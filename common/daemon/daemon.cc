#include "common/daemon/daemon.h"

#include <grpc/support/log.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/roots.h"
#include "common/base/status.h"
#include "common/base/watchdog.h"
#include "common/daemon/ops_server.h"
#include "common/log/log.h"
#include "common/metrics/metrics.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"
#include "common/rpc/identity.h"
#include "common/rpc/process_metrics.h"
#include "common/rpc/server.h"

namespace sluice::daemon {
namespace {

// How long calls that are still open after Program::Drain() may go on.
constexpr absl::Duration kLastCalls = absl::Seconds(2);

// Blocks SIGTERM, SIGINT and SIGUSR1 in all threads, so that the main thread can wait for them.
// Make it before any thread starts. SIGPIPE is ignored.
class Signals {
 public:
  // Why a program ends, and what comes after it; nothing if the daemon ends.
  struct End {
    absl::Status why;
    MakeProgram next;
  };

  Signals() {
    sigemptyset(&set_);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);
  }

  // Makes Wait() return `why`. Only the first call counts. May be called from any thread.
  void Stop(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (stopped_) return;
    stopped_ = true;
    why_ = std::move(why);
    kill(getpid(), SIGTERM);
  }

  // Makes Wait() return `next`. May be called from any thread.
  void Replace(MakeProgram next) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    next_ = std::move(next);
    kill(getpid(), SIGUSR1);
  }

  // Waits for a signal, Stop() or Replace(). `why` is OK for a signal.
  End Wait() ABSL_LOCKS_EXCLUDED(mu_) {
    while (true) {
      int signal = 0;
      sigwait(&set_, &signal);

      MutexLock lock(&mu_);
      // SIGUSR1 wakes this thread for Replace(), and means nothing if it comes from outside.
      if (signal == SIGUSR1 && next_) return {absl::OkStatus(), std::exchange(next_, nullptr)};
      if (signal == SIGUSR1) continue;

      // From now on the process drains, and later calls of Stop() send no signal. An earlier Stop()
      // may have sent one that still waits; it would kill the process below, so it is taken away.
      stopped_ = true;
      next_ = nullptr;
      const timespec no_wait{};
      while (sigtimedwait(&set_, nullptr, &no_wait) > 0) {
      }
      pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);  // The next signal kills.
      return {why_, nullptr};
    }
  }

 private:
  sigset_t set_;
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  MakeProgram next_ ABSL_GUARDED_BY(mu_);
};

// Writes gRPC's error messages to Sluice's log.
void LogGrpc(gpr_log_func_args* args) {
  if (args->severity < GPR_LOG_SEVERITY_ERROR) return;
  // It comes with each connection, because certificates name daemons and not their hosts.
  if (absl::StrContains(args->message, "No match found for server name")) return;
  log::Warning("grpc", {{"message", args->message}, {"file", args->file}, {"line", args->line}});
}

// Returns -1 if the daemon should run, else the exit code after --help, --version or wrong use.
int ParseFlags(int argc, char** argv, const About& about, Flags* flags) {
  CLI::App app{about.summary, about.name};
  app.footer(absl::StrCat("Example: ", about.example));
  app.set_version_flag("--version", kBuild);

  bool insecure = false;
  CLI::Option* const tls =
      app.add_option("--tls", flags->tls,
                     "folder with tls.crt, tls.key and ca.crt, as `sluice pki issue` writes it")
          ->envname("SLUICE_TLS");
  app.add_flag("--insecure-loopback", insecure,
               "work without certificates, on loopback only: every process of this machine may "
               "then call the daemon, and is believed")
      ->excludes(tls);
  app.add_option("--listen", flags->listen, "HOST:PORT for gRPC; port 0 means any free port")
      ->capture_default_str();
  app.add_option("--ops", flags->ops, "HOST:PORT for /metrics, /livez and /readyz")
      ->capture_default_str();
  app.add_option("--advertise", flags->advertise,
                 "HOST or HOST:PORT at which other daemons reach this one, if --listen is 0.0.0.0 "
                 "or [::]; default: --listen")
      ->envname("SLUICE_ADVERTISE");
  if (about.role != rpc::Role::kController) {
    app.add_option("--controller", flags->controller,
                   "HOST:PORT of the controller; if there are several, all of them with commas "
                   "between");
    app.add_option("--pool", flags->pool,
                   "pool of this daemon: it works for jobs with this resources.pool alone")
        ->envname("SLUICE_POOL")
        ->capture_default_str();
  }
  app.add_option("--id", flags->id,
                 absl::StrCat("name of this daemon in the fleet; default: that of its certificate, "
                              "else ",
                              rpc::RoleName(about.role), "-0"));
  app.add_option("--data-dir", flags->data_dir, "directory to which only this daemon writes");
  app.add_option("--read-root", flags->read_roots,
                 "folder below which the files that jobs read must lie; may be repeated; needed "
                 "if --listen is not on loopback, unless a --write-root is given")
      ->envname("SLUICE_READ_ROOTS")
      ->delimiter(':');
  app.add_option("--write-root", flags->write_roots,
                 "folder below which jobs write their checkpoints, which may also be read; may be "
                 "repeated")
      ->envname("SLUICE_WRITE_ROOTS")
      ->delimiter(':');
  app.add_option("--threads", flags->threads, "threads for computing; 0 means one per core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--stall-limit", flags->stall_limit,
                 "how long a loop of this daemon may be silent before /livez answers 503, so that "
                 "it is started anew; long work says itself how long it may take")
      ->envname("SLUICE_STALL_LIMIT")
      ->capture_default_str();
  app.add_option("--log-level", flags->log_level,
                 "lowest level that is logged; events `audit` always are")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();

  for (const About::Flag& flag : about.flags) {
    std::string& value = flags->own_flags[flag.name];
    CLI::Option* option = flag.kind == About::Flag::Kind::kSwitch
                              ? app.add_flag(flag.name, value, flag.help)
                              : app.add_option(flag.name, value, flag.help);
    if (flag.kind == About::Flag::Kind::kBytes) option->transform(CLI::AsSizeValue(false));
    if (!flag.env.empty()) option->envname(flag.env);
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (flags->tls.empty() && !insecure) {
    std::fprintf(stderr,
                 "%s: error SLUICE-AUTH-0008: neither --tls nor --insecure-loopback is given\n"
                 "hint: give --tls DIR with a folder of `sluice pki issue %s NAME`; to try things "
                 "out on one machine, `sluice dev up` does that, or give --insecure-loopback\n",
                 about.name.c_str(), std::string(rpc::RoleName(about.role)).c_str());
    return 2;
  }
  return -1;
}

// Loads the certificate and makes it that of this process. It must be for this daemon's role, and
// names the daemon, unless it is for the whole role.
absl::Status UseCertificate(const About& about, Flags* flags) {
  if (!flags->tls.empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Credentials> credentials,
                            rpc::Credentials::Load(flags->tls));
    const rpc::Identity& identity = credentials->identity();
    if (flags->id.empty() && identity.name != "*") flags->id = identity.name;
    const bool named = identity.name == "*" || identity.name == flags->id;
    if (identity.role != about.role || !named) {
      return ErrorWith(
          absl::StatusCode::kFailedPrecondition,
          {.reason = "WRONG_CERTIFICATE",
           .catalogue = "SLUICE-AUTH-0009",
           .hint = "give --tls the folder of this daemon, or --id the name in its certificate"},
          absl::StrCat("the certificate of ", flags->tls, " is that of ",
                       rpc::DescribeIdentity(identity), ", but this is ", rpc::RoleName(about.role),
                       " '", flags->id, "'"));
    }
    rpc::SetProcessCredentials(std::move(credentials));
  }
  if (flags->id.empty()) flags->id = absl::StrCat(rpc::RoleName(about.role), "-0");
  if (rpc::IsName(flags->id)) return absl::OkStatus();
  return ErrorWith(absl::StatusCode::kInvalidArgument, {.reason = "BAD_ID"},
                   absl::StrCat("--id ", flags->id,
                                ": wanted: 1 to 63 of a-z, 0-9, '.', '_' and '-', first a letter "
                                "or a digit"));
}

// Confines the files of jobs to the folders that the operator gave.
absl::Status ConfineJobs(const About& about, const Flags& flags) {
  if (flags.read_roots.empty() && flags.write_roots.empty()) {
    // Without TLS the server refuses such an address itself.
    if (flags.tls.empty() || rpc::CheckAddress(flags.listen, /*tls=*/false).ok())
      return absl::OkStatus();
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "NO_ROOTS",
                      .catalogue = "SLUICE-AUTH-0011",
                      .hint = "give --read-root DIR for the models and data of jobs, and "
                              "--write-root DIR for their checkpoints"},
                     absl::StrCat("--listen ", flags.listen,
                                  " is not on loopback, and without --read-root and --write-root "
                                  "jobs could name every file of this host"));
  }
  // The controller only checks the paths of submitted jobs; other hosts may have the folders.
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const Roots> roots,
                          Roots::Open(flags.read_roots, flags.write_roots,
                                      /*must_exist=*/about.role != rpc::Role::kController));
  SetProcessRoots(std::move(roots));
  return absl::OkStatus();
}

absl::Status SetStallLimit(const Flags& flags) {
  absl::Duration limit;
  if (!absl::ParseDuration(flags.stall_limit, &limit) || limit <= absl::ZeroDuration()) {
    return ErrorWith(
        absl::StatusCode::kInvalidArgument, {.hint = "give a duration above 0, such as 30s or 2m"},
        absl::StrCat("--stall-limit ", flags.stall_limit, ": this is not a duration above 0"));
  }
  ProcessWatchdog()->SetLimit(limit);
  return absl::OkStatus();
}

// Prints an error and its hint. Returns the exit code.
int PrintError(const About& about, const absl::Status& status) {
  const ErrorDetail detail = DetailOf(status);
  std::fprintf(stderr, "%s: error%s: %s\n", about.name.c_str(),
               detail.catalogue.empty() ? "" : absl::StrCat(" ", detail.catalogue).c_str(),
               std::string(status.message()).c_str());
  if (!detail.hint.empty()) std::fprintf(stderr, "hint: %s\n", detail.hint.c_str());
  return 1;
}

// Adds sluice_rpc_certificate_expiry_timestamp_seconds if the process has a certificate.
void AddCertificateMetrics(metrics::Registry* metrics) {
  const std::shared_ptr<const rpc::Credentials> credentials = rpc::ProcessCredentials();
  if (credentials == nullptr) return;
  const metrics::Gauge expiry = metrics->AddGauge(
      "sluice_rpc_certificate_expiry_timestamp_seconds",
      "Unix time at which the certificate in the TLS folder ends; 0 if it cannot be read.");
  metrics->BeforeCollect([credentials, expiry] {
    const absl::Time ends = credentials->ReadExpiry();
    const bool read = ends != absl::InfinitePast();
    expiry.Set(read ? absl::ToDoubleSeconds(ends - absl::UnixEpoch()) : 0);
  });
}

// Serves the calls of a program until it ends. Sets the addresses in `flags` to those on which it
// listened.
absl::StatusOr<Signals::End> Serve(const About& about, Program& program, Flags* flags,
                                   metrics::Registry* metrics, bool first, Signals* signals) {
  const std::vector<grpc::Service*> services = program.services();
  rpc::Server::Options options{.address = flags->listen, .metrics = metrics};
  if (services.empty()) options.refusal = [&program] { return program.Refusal(); };
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Server> server,
                          rpc::Server::Start(options, services));
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<OpsServer> ops,
                          OpsServer::Start(flags->ops, metrics,
                                           {.live = [] { return ProcessWatchdog()->Check(); },
                                            .ready = [&]() -> absl::StatusOr<std::string> {
                                              SLUICE_RETURN_IF_ERROR(program.CheckReady());
                                              return program.ready_text();
                                            }},
                                           program.routes()));
  flags->listen = server->address();
  flags->ops = ops->address();

  // Nobody calls a controller at an address that it names itself.
  std::string address = server->address(), ops_address = ops->address();
  if (about.role != rpc::Role::kController || !flags->advertise.empty()) {
    SLUICE_ASSIGN_OR_RETURN(address, rpc::AdvertisedAddress(flags->advertise, address));
    if (rpc::IsOnAllInterfaces(ops_address)) {
      const std::string host = address.substr(0, address.rfind(':'));
      SLUICE_ASSIGN_OR_RETURN(ops_address, rpc::AdvertisedAddress(host, ops_address));
    }
  }
  SLUICE_RETURN_IF_ERROR(program.Start(address, ops_address));
  if (first) {
    std::printf("{\"listening\": \"%s\", \"ops\": \"%s\"}\n", address.c_str(), ops_address.c_str());
    std::fflush(stdout);
    log::Info("started", {{"version", kBuild}, {"listening", address}, {"ops", ops_address}});
  }

  const Signals::End end = signals->Wait();
  if (!end.next)
    log::Info("draining",
              {{"why", end.why.ok() ? absl::string_view("asked to") : end.why.message()}});
  // Clients must see NOT_SERVING before the program stops taking work.
  server->SetServing(false);
  program.Drain();
  server->Drain(kLastCalls);
  return end;
}

absl::Status RunProgram(const About& about, Flags flags, MakeProgram make, Signals* signals) {
  metrics::Registry metrics;
  metrics::AddProcessMetrics(&metrics, rpc::RoleName(about.role), kBuild);
  AddCertificateMetrics(&metrics);
  rpc::SetProcessMetrics(&metrics);
  const auto unset = absl::MakeCleanup([] { rpc::SetProcessMetrics(nullptr); });
  const Host host{&flags, &metrics, [signals](absl::Status why) { signals->Stop(std::move(why)); },
                  [signals](MakeProgram next) { signals->Replace(std::move(next)); }};

  for (bool first = true;; first = false) {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Program> program, make(host));
    SLUICE_ASSIGN_OR_RETURN(Signals::End end,
                            Serve(about, *program, &flags, &metrics, first, signals));
    if (!end.next) {
      log::Info("ended");
      return end.why;
    }
    make = std::move(end.next);
  }
}

}  // namespace

// jemalloc reads this when the process starts. By default it returns buffers above 8 MiB to the
// system at once, and the tensors of a step are that large. The first write to new memory costs
// many times as much as a write to memory in use. So large buffers are kept for a while, like all
// others.
extern "C" {
extern const char* const malloc_conf;
const char* const malloc_conf = "oversize_threshold:0";
}

int Main(int argc, char** argv, const About& about, const MakeProgram& make) {
  Flags flags;
  if (const int code = ParseFlags(argc, argv, about, &flags); code >= 0) return code;
  if (const absl::Status status = UseCertificate(about, &flags); !status.ok())
    return PrintError(about, status);
  if (const absl::Status status = ConfineJobs(about, flags); !status.ok())
    return PrintError(about, status);
  if (const absl::Status status = SetStallLimit(flags); !status.ok())
    return PrintError(about, status);
  log::Level level = log::Level::kInfo;
  (void)log::ParseLevel(flags.log_level, &level);  // ParseFlags() has checked it.
  log::Init(flags.id, level);
  gpr_set_log_function(&LogGrpc);
  Signals signals;
  const absl::Status status = RunProgram(about, flags, make, &signals);
  return status.ok() ? 0 : PrintError(about, status);
}

}  // namespace sluice::daemon
