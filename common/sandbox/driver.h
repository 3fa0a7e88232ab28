#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/sandbox/sandbox.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice::sandbox {

// The program driver.py in a sandbox, and the talk with it. Not thread-safe, but for Kill().
//
// What it replies is as little to be trusted as the programs that it runs: all sizes are checked.
class Driver {
 public:
  // Starts it and does not wait. Errors as Launcher::Start().
  static absl::StatusOr<std::unique_ptr<Driver>> Start(Launcher* launcher, const Limits& limits);

  // Waits until it is ready. UNAVAILABLE: it did not come up; the message has what it printed.
  absl::Status AwaitReady(absl::Duration timeout);
  // Sends a request, with "bytes" added, and the bytes. UNAVAILABLE: it has ended.
  absl::Status Send(nlohmann::json request, absl::string_view bytes);

  // The reply to a test.
  struct TestReply {
    // time, output, full (other sandboxes have filled the file system that it shares with them), or
    // empty: it ended by itself.
    std::string why;
    int code = -1;  // Its exit code, or -1.
    double cpu_seconds = 0;
    std::string out, err, report;
  };
  // Waits for the reply to the test that was sent. Each part has at most `most` bytes.
  // UNAVAILABLE: it has ended, does not answer in time, or not by the rules.
  absl::StatusOr<TestReply> AwaitReply(absl::Duration timeout, uint64_t most);

  // Ends it and all that it runs. Thread-safe.
  void Kill() { (void)process_->Kill(); }

 private:
  explicit Driver(std::unique_ptr<Process> process) : process_(std::move(process)) {}
  // The next line, which is a JSON object.
  absl::StatusOr<nlohmann::json> ReadLine(absl::Duration end);
  // Reads until `buffer_` has this many bytes.
  absl::Status Fill(size_t bytes, absl::Duration end);

  const std::unique_ptr<Process> process_;
  std::string buffer_;  // What has come and was not used yet.
};

}  // namespace sluice::sandbox
