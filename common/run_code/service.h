#pragma once

#include <list>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/run_code/http_server.h"
#include "common/run_code/protocol.h"
#include "common/sandbox/code_runner.h"

namespace sluice::run_code {

// Answers POST /run_code by running programs in the sandboxes of this machine. Thread-safe.
class Service {
 public:
  // `sandboxes` outlives it.
  explicit Service(sandbox::CodeSandboxes* sandboxes) : sandboxes_(sandboxes) {}
  ~Service() { Stop(); }

  // Blocks until the program has ended. 400: no request. 404: another path. 422: it asks for what
  // is not here. 429: all sandboxes are in use. 503: the service stops. Else 200, also if a sandbox
  // fails: the JSON says so.
  HttpAnswer Answer(const HttpRequest& request);

  // Ends all programs. Idempotent.
  void Stop();

 private:
  // Runners by what they allow a program. Each sets sandboxes up ahead of time, so few are kept.
  struct Kept {
    uint64_t memory_bytes;
    absl::Duration wall;
    std::shared_ptr<sandbox::CodeRunner> runner;
  };
  // Null: the service has stopped.
  std::shared_ptr<sandbox::CodeRunner> FindRunner(const Request& request);

  sandbox::CodeSandboxes* const sandboxes_;
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);  // The last used is first.
};

}  // namespace sluice::run_code
