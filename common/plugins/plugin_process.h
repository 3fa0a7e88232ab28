#pragma once

#include <cstdint>
#include <functional>
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
#include "common/plugins/plugin_calls.h"
#include "common/plugins/plugin_source.h"

namespace sluice {

// A process of a plug-in. The caller whose turn it is reads the answers, of the other callers too,
// so a call costs no more than two switches of threads.
//
// Owns one thread, which reads the stderr of the process. Thread-safe.
class PluginProcess : public PluginInstance {
 public:
  using Launch = std::function<absl::StatusOr<std::unique_ptr<PluginChild>>()>;

  // Starts a process, which will get the line `hello`. This one must ignore SIGPIPE, as every
  // daemon does. Errors of `launch`.
  static absl::StatusOr<std::shared_ptr<PluginProcess>> Start(const Launch& launch,
                                                              std::string hello,
                                                              PluginSource::TakeLine take_line);
  // Kills the process and all that it has started.
  ~PluginProcess() override;
  PluginProcess(const PluginProcess&) = delete;
  PluginProcess& operator=(const PluginProcess&) = delete;

  // Its errors quote the end of the process's stderr.
  absl::Status Describe(absl::Duration timeout) override;
  const PluginDescription& description() const override { return description_; }
  absl::StatusOr<std::vector<PluginResult>> Call(const std::vector<nlohmann::json>& items,
                                                 absl::Duration timeout) override;
  absl::Status status() const override { return calls_.status(); }
  // Kills the process, and all of its group.
  void End(absl::Status why) override;

 private:
  PluginProcess(std::unique_ptr<PluginChild> child, std::string hello,
                PluginSource::TakeLine take_line);
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
  const std::string hello_;
  const PluginSource::TakeLine take_line_;
  PluginDescription description_;

  Mutex writing_;
  // Only touched by the one caller that reads.
  std::string buffer_;
  size_t scanned_ = 0;  // Bytes of buffer_ that have no line end.
  PluginCalls calls_;

  Mutex mu_;
  CondVar changed_;  // Its stderr has ended.
  bool stderr_ended_ ABSL_GUARDED_BY(mu_) = false;
  std::string last_words_ ABSL_GUARDED_BY(mu_);  // The end of its stderr.
  std::thread stderr_thread_;
};

}  // namespace sluice
