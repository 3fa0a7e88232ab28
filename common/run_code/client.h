#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/judges/http_client.h"
#include "common/judges/throttle.h"
#include "common/rpc/cancel.h"
#include "common/run_code/protocol.h"
#include "common/sandbox/code.h"

namespace sluice::run_code {

// Runs programs in the sandboxes of a server, over HTTP. All jobs of a daemon share it.
//
// The number of calls under way follows what the server bears (common/judges/throttle.h). A server
// that fails call after call is left alone for a while. Thread-safe.
class Client {
 public:
  struct Options {
    std::string url;      // Of the server, such as https://sandboxes.example.com.
    Secret key;           // Empty: none is sent.
    std::string ca_file;  // Empty: the system's authorities.
    uint32_t most_calls = 256;
    // What a call may take beside the request's own times: the way there and back, and a server
    // that runs a doubtful test twice.
    absl::Duration grace = absl::Seconds(30);
  };
  // INVALID_ARGUMENT: as CheckUrl() of the url.
  static absl::StatusOr<std::unique_ptr<Client>> Make(Options options);

  const std::string& url() const { return url_; }
  // How many programs are worth waiting for the server now.
  // RESOURCE_EXHAUSTED CODE_SERVER_DOWN: it is down, and left alone.
  absl::StatusOr<uint32_t> Capacity() const;

  // Has the request run. Blocks up to `*turn` until the call may begin, and for the call as long as
  // the request's own times allow. A call that is refused as one too many is made again. The time
  // of the wait is taken off `*turn`.
  // RESOURCE_EXHAUSTED CODE_SERVER_BUSY: no call was admitted in that time, or it is down.
  // INVALID_ARGUMENT: the server takes no request so large.
  // OUT_OF_RANGE: the reply is above kMostReply.
  // UNAVAILABLE CODE_SERVER_FAULT: it did not answer, or not as such a server does.
  // CANCELLED: `stop` was triggered.
  // The last three say nothing about the program.
  absl::StatusOr<Reply> Run(const Request& request, absl::Duration* turn, const rpc::Cancel& stop);

 private:
  explicit Client(Options options);
  absl::Status CheckUpLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitTurn(absl::Duration deadline, const rpc::Cancel& stop);

  const std::string url_;
  const absl::Duration grace_;
  Clock* const clock_ = Clock::Real();
  HttpClient http_;
  mutable Mutex mu_;
  CondVar ended_;  // A call has ended.
  Throttle throttle_ ABSL_GUARDED_BY(mu_);
  std::string last_fault_ ABSL_GUARDED_BY(mu_);
};

// What the programs of a job may use. A server has limits of its own besides.
struct JobLimits {
  uint64_t memory_bytes = 512ull << 20;
  absl::Duration wall = absl::Seconds(10);  // Of each test.
  uint64_t output_bytes = kMostOutput;      // Of each test.
};

// Runs the tests of a program by calls of `client`, which outlives the function: one for each test.
// A test of a Python function is sent as a program that calls it and prints the result.
RunCode MakeRunCode(Client* client, const JobLimits& limits, std::shared_ptr<rpc::Cancel> stop);

}  // namespace sluice::run_code
