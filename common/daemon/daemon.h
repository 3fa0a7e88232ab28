#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/role.h"

namespace grpc {
class Service;
}  // namespace grpc
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

// What all daemons have in common: flags, signals, the gRPC server, the ops server, the first line
// on stdout.
namespace sluice::daemon {

inline constexpr char kBuild[] = "0.1.0";
inline constexpr unsigned kProtocol = 1;  // Of the whole tree; the only one that this build speaks.

// A daemon as its --help names it.
struct About {
  std::string name;  // "sluice-queue"
  rpc::Role role = rpc::Role::kUnspecified;
  std::string summary;  // One sentence.
  std::string example;  // A command line that runs.
  // Flags of this daemon alone; each may come from the environment too, where `env` names a
  // variable.
  struct Flag {
    enum class Kind {
      kText,
      kBytes,   // A number, or 512m, 8g: the value is the number.
      kSwitch,  // Takes no value: "true" where it is given.
    };
    std::string name;  // "--mirror"
    std::string help;
    std::string env = "";
    Kind kind = Kind::kText;
  };
  std::vector<Flag> flags;
};

struct Flags {
  std::string listen = "127.0.0.1:0";  // gRPC; port 0: any free one.
  std::string ops = "127.0.0.1:0";     // HTTP: /metrics /livez /readyz.
  std::string controller;              // HOST:PORT; empty: none (the controller itself).
  std::string id;                      // Names the daemon in the fleet; default <role>-0.
  std::string data_dir;                // Empty: none given.
  int threads = 0;                     // For computing; 0: as many as the machine has.
  std::string log_level = "info";
  std::map<std::string, std::string> own;  // Values of About::flags by name.
  // Empty: not given.
  std::string Own(const std::string& name) const {
    const auto it = own.find(name);
    return it == own.end() ? "" : it->second;
  }
};

// What the scaffolding lends to a daemon; outlives it.
struct Host {
  const Flags* flags = nullptr;
  metrics::Registry* metrics = nullptr;
  // Ends the daemon as SIGTERM does; an error ends it with exit code 1 and is printed. From any
  // thread.
  std::function<void(absl::Status why)> stop;
};

// One daemon, between its start and its end. Called from the main thread, but for Ready().
class Program {
 public:
  virtual ~Program() = default;

  // gRPC services of the callback API, owned by the program, to be served from before Start().
  virtual std::vector<grpc::Service*> services() = 0;
  // The server listens on `address`, the ops server on `ops`: start threads, register with the
  // controller.
  virtual absl::Status Start(const std::string& address, const std::string& ops) = 0;
  // OK: /readyz answers 200; else 503 with the message. From the ops server's threads.
  virtual absl::Status Ready() { return absl::OkStatus(); }
  // Takes no new work, ends or gives back what it holds, finishes parked calls. Health is
  // NOT_SERVING by now, calls are still answered; they are cancelled a little after it returns.
  virtual void Drain() = 0;
};

using MakeProgram = std::function<absl::StatusOr<std::unique_ptr<Program>>(const Host& host)>;

// A daemon's whole main(). Parses the flags, makes the program, starts it, prints {"listening": ..,
// "ops": ..} as the first line of stdout, and waits for SIGTERM or SIGINT; a second one ends it at
// once. Exit codes: 0 drained, 1 failed, 2 misused.
int Main(int argc, char** argv, const About& about, const MakeProgram& make);

}  // namespace sluice::daemon
