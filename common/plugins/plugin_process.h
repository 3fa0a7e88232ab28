#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "common/plugins/launch.h"
#include "common/plugins/protocol.h"

namespace sluice {

// One process of a plug-in, from its start to its end. Several threads may call it at a time. The
// caller whose turn it is reads the answers, of the other callers too, so a call costs no more than
// two switches of threads.
//
// Owns one thread, which reads the stderr of the process. Thread-safe.
class PluginProcess {
 public:
  using Launch = std::function<absl::StatusOr<std::unique_ptr<PluginChild>>()>;
  // Takes a line of its stderr. Called on a thread of the process.
  using TakeLine = std::function<void(absl::string_view line)>;

  // Starts a process. This one must ignore SIGPIPE, as every daemon does. Errors of `launch`.
  static absl::StatusOr<std::unique_ptr<PluginProcess>> Start(const Launch& launch,
                                                              TakeLine take_line);
  // Kills the process and all that it has started.
  ~PluginProcess();
  PluginProcess(const PluginProcess&) = delete;
  PluginProcess& operator=(const PluginProcess&) = delete;

  // Sends `hello`, and waits up to `timeout` for the description. Call it once, before Call().
  // UNAVAILABLE PLUGIN_START: the process ended, gave no description in time, or a wrong one. The
  // message quotes the end of its stderr.
  absl::Status Describe(const std::string& hello, absl::Duration timeout);
  const PluginDescription& description() const { return description_; }

  // Has the items scored. After any of these errors the process is no more:
  // DEADLINE_EXCEEDED PLUGIN_DEADLINE: this call had no answer in `timeout`. The process is killed.
  // ABORTED PLUGIN_DIED: it ended, or wrote what is no answer, during this call.
  // UNAVAILABLE PLUGIN_GONE: it ended for a reason that has nothing to do with this call.
  // After this one it goes on:
  // INVALID_ARGUMENT TOO_LARGE: the items need a line of more than kMaxPluginLine bytes.
  absl::StatusOr<std::vector<PluginResult>> Call(const std::vector<nlohmann::json>& items,
                                                 absl::Duration timeout);

  // OK while the process runs, as far as is known.
  absl::Status status() const;
  // Kills the process, and all of its group. `why` is the error of all calls, unless it has ended
  // already.
  void End(absl::Status why);

 private:
  struct Pending {
    size_t items = 0;
    bool done = false;
    absl::StatusOr<std::vector<PluginResult>> result{std::vector<PluginResult>()};
  };

  PluginProcess(std::unique_ptr<PluginChild> child, TakeLine take_line);
  // Writes all of `line`, waiting for room until `deadline`.
  absl::Status Write(absl::string_view line, absl::Duration deadline);
  // Waits until `deadline` for output, and reads what there is. Returns the lines that have come.
  // OUT_OF_RANGE: the output has ended.
  absl::StatusOr<std::vector<std::string>> ReadLines(absl::Duration deadline);
  // Reads once, and completes the calls whose answers have come.
  void ReadAnswers(absl::Duration deadline);
  void TakeAnswer(const std::string& line);
  // End() because of what the process did: it wrote `what`, or with `ended` it has ended. Adds how
  // it ended, and the end of its stderr.
  void EndByItself(absl::string_view what, bool ended, absl::string_view reason = "PLUGIN_DIED");
  void ReadStderr();

  const std::unique_ptr<PluginChild> child_;
  const Fd stop_;  // An eventfd that ends ReadStderr(), even if others hold the process's stderr.
  const TakeLine take_line_;
  PluginDescription description_;

  Mutex writing_;
  // Only touched by the thread that has set reading_.
  std::string buffer_;
  size_t scanned_ = 0;  // Bytes of buffer_ that have no line end.

  mutable Mutex mu_;
  CondVar changed_;  // A call is done, nobody reads any more, or its stderr has ended.
  absl::Status ended_ ABSL_GUARDED_BY(mu_);
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool stderr_ended_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Pending*> pending_ ABSL_GUARDED_BY(mu_);
  std::string last_words_ ABSL_GUARDED_BY(mu_);  // The end of its stderr.
  std::thread stderr_thread_;
};

}  // namespace sluice
