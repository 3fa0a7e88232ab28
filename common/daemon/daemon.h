#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/daemon/http_route.h"
#include "common/rpc/role.h"

namespace grpc {
class Service;
}  // namespace grpc
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

// What all daemons have in common: flags, signals, the gRPC server, the HTTP server for operators,
// and the first line on stdout.
namespace sluice::daemon {

inline constexpr char kBuild[] = "0.1.0";
// The protocol version: common to all daemons, and the only one that this build speaks.
inline constexpr unsigned kProtocol = 1;

// Describes a daemon, for its --help.
struct About {
  std::string name;  // "sluice-queue"
  rpc::Role role = rpc::Role::kUnspecified;
  std::string summary;  // One sentence.
  std::string example;  // A command line that works.
  // The flags that only this daemon has. If `env` names an environment variable, the value may come
  // from it too.
  struct Flag {
    enum class Kind {
      kText,
      kBytes,   // A number, or a size such as 512m or 8g. The value is the number of bytes.
      kSwitch,  // Takes no value. It is "true" if given.
    };
    std::string name;  // "--mirror"
    std::string help;
    std::string env = "";
    Kind kind = Kind::kText;
  };
  std::vector<Flag> flags;
};

// The values of the command line.
struct Flags {
  // A TLS folder (common/pki/tls_dir.h) with the daemon's certificate. Empty: no TLS.
  std::string tls;
  std::string listen = "127.0.0.1:0";  // For gRPC. Port 0: any free port.
  std::string ops = "127.0.0.1:0";     // For HTTP: /metrics, /livez, /readyz.
  // HOST or HOST:PORT at which other daemons reach this one. Empty: `listen`.
  std::string advertise;
  // HOST:PORT, or several with commas between, of which one leads. Empty in the controller itself.
  std::string controller;
  std::string id;        // Name of the daemon in the fleet. Default: <role>-0.
  std::string data_dir;  // Empty: not given.
  // The folders of the files of jobs (common/base/roots.h). Both empty: any folder.
  std::vector<std::string> read_roots, write_roots;
  std::string pool = "default";  // Its jobs are those of this pool (resources.pool).
  int threads = 0;               // Threads for computing. 0: one per core.
  // How long one of the daemon's loops may be silent before /livez answers 503 (Watchdog).
  std::string stall_limit = "30s";
  std::string log_level = "info";
  std::map<std::string, std::string> own_flags;  // Values of About::flags, by name.
  // The value of a flag of About::flags; empty if it was not given.
  std::string OwnFlag(const std::string& name) const {
    const auto it = own_flags.find(name);
    return it == own_flags.end() ? "" : it->second;
  }
};

class Program;
struct Host;
using MakeProgram = std::function<absl::StatusOr<std::unique_ptr<Program>>(const Host& host)>;

// What Main() lends to a program. It outlives the program.
struct Host {
  const Flags* flags = nullptr;
  metrics::Registry* metrics = nullptr;
  // Ends the daemon as SIGTERM does. With an error, the error is printed and the exit code is 1.
  // May be called from any thread.
  std::function<void(absl::Status why)> stop;
  // Ends this program, and goes on with the one that `next` makes, on the same addresses. It has no
  // effect on a daemon that is ending. May be called from any thread, once.
  std::function<void(MakeProgram next)> replace;
};

// One daemon, from its start to its end. All calls come from the main thread, except CheckReady(),
// ready_text() and Refusal().
class Program {
 public:
  virtual ~Program() = default;

  // The gRPC services, which use the callback API. The program owns them. They are served already
  // before Start() is called. If there are none, every call gets Refusal().
  virtual std::vector<grpc::Service*> services() = 0;
  virtual absl::Status Refusal() { return absl::UnavailableError("this daemon serves no calls"); }
  // The pages that the HTTP server has beside the usual ones. Asked for once. They are served
  // already before Start() is called, and until the program is destroyed.
  virtual std::vector<HttpRoute> routes() { return {}; }
  // Called when the gRPC server and the HTTP server listen. `address` and `ops` are where other
  // hosts reach them. Starts threads and registers with the controller.
  virtual absl::Status Start(const std::string& address, const std::string& ops) = 0;
  // What /readyz answers: 200 with ready_text() for OK, else 503 with the message. Called from the
  // HTTP server's threads.
  virtual absl::Status CheckReady() { return absl::OkStatus(); }
  virtual std::string ready_text() { return "ok"; }
  // Takes no new work, ends or gives back what it holds, and finishes parked calls. Health is
  // NOT_SERVING by now. Calls are still answered, and are cancelled shortly after this returns.
  virtual void Drain() = 0;
};

// The whole main() of a daemon. Parses the flags, makes the program, starts it, prints
// {"listening": .., "ops": ..} as the first line of stdout, and waits for SIGTERM or SIGINT. A
// second signal ends the process at once. Returns the exit code:
// 0: drained, or --help or --version was given.
// 1: failed.
// 2: wrong use of the command line.
int Main(int argc, char** argv, const About& about, const MakeProgram& make);

}  // namespace sluice::daemon
