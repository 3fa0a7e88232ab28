#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/log/throttle.h"
#include "common/plugins/launch.h"
#include "common/plugins/plugin_server.h"
#include "common/plugins/plugin_source.h"
#include "common/verifiers/plugin_result.h"
#include "common/verifiers/plugin_spec.h"

namespace sluice {

// Runs one plug-in of one job: keeps as many instances of it (processes of a program, or a stream
// to a server) as its source says, and gives them the answers to score. An instance that ends,
// hangs or writes what is no answer is ended and replaced, and costs no answer its score: what it
// had not answered is asked of another one, alone. An input on which instances end three times,
// while the plug-in's self-test passes, is poison: it gets an error instead of a score. Servers
// take many calls at a time and end for reasons of their own, so the end of a stream counts against
// an input only if no other was in it; an input is tried alone after two such ends.
//
// Owns one thread, which starts the instances, and those of the instances. Thread-safe.
class PluginHost {
 public:
  struct Options {
    std::string job;   // Name of the job, for its hello and for log lines.
    std::string name;  // Name of the reward, for messages.
    PluginSpec spec;
    bool scores_groups = false;  // It gets whole groups. Else each request has one item.
    // How programs are started, and the folders of PluginCommandOf().
    LaunchPlugin launch = LaunchUnconfined;
    std::string folders = ProgramFolders();
    // The servers that the operator names. They outlive the host. Null: none.
    const PluginServers* servers = nullptr;
    absl::Duration connect_timeout = absl::Seconds(2);   // For a server to be reached,
    absl::Duration version_timeout = absl::Seconds(10);  // and then to say its version.
    // Whether Make() does without a server that does not answer: then the plug-in never runs, and
    // has no version. A later host may run it.
    bool optional = false;
    absl::Duration start_timeout = absl::Minutes(1);
    absl::Duration first_back_off = absl::Milliseconds(200);  // Doubles up to 30 s.
    absl::Duration error_rest = absl::Seconds(30);
    // So many first starts in a row have to fail until the plug-in counts as broken. A server that
    // cannot be reached is waited for.
    int first_tries = 3;
    // Called on the host's thread when the plug-in is broken, with the reason. May be null.
    std::function<void(absl::Status why)> on_broken;
  };

  // Finds out the version of the plug-in, and begins to start instances. Blocks while a
  // server does not answer. Errors as MakePluginProgram() or MakePluginServer(), and
  // PluginSource::Version().
  static absl::StatusOr<std::unique_ptr<PluginHost>> Make(Options options);
  ~PluginHost();  // Calls Stop().

  // As PluginSource::Version() said it at the start, and PluginSource::Stamp() just before. Empty:
  // a server did not answer (Options::optional).
  const std::string& version() const { return version_; }
  const std::string& stamp() const { return stamp_; }
  PluginSource& source() const { return *source_; }

  // How many answers are worth leasing: as many as the instances take, and as many again.
  // UNAVAILABLE PLUGIN_DOWN: no instance runs; the message says why.
  // UNAVAILABLE PLUGIN_ERRORS: it gave errors for more than a fifth of its newest answers, so that
  // what it scores would be a selection. After Options::error_rest it may try again.
  absl::StatusOr<uint32_t> Capacity() const;

  // Has the items scored, those of a group, or one. Blocks up to `timeout` until an instance is
  // free, and as long again for each call.
  // RESOURCE_EXHAUSTED PLUGIN_DOWN: no instance has started in this time, or it is broken, or
  // instances ended again and again for reasons other than these items; the message says why.
  // RESOURCE_EXHAUSTED PLUGIN_BUSY: no instance was free in this time.
  // DEADLINE_EXCEEDED PLUGIN_DEADLINE: the plug-in gave no answer. Another try may succeed.
  // CANCELLED: Stop() was called.
  absl::StatusOr<std::vector<PluginResult>> Score(const std::vector<nlohmann::json>& items,
                                                  absl::Duration timeout);

  // Waits until an instance has started and passed its self-test.
  // DEADLINE_EXCEEDED: none has in this time. CANCELLED: Stop() was called. Others: the plug-in is
  // broken, for this reason.
  absl::Status AwaitStart(absl::Duration timeout);
  // Whether no instance runs, and none can be started because the plug-in has changed.
  bool is_over() const;

  // Ends the instances; calls end with CANCELLED. Idempotent.
  void Stop();

  // Why the plug-in counts as broken, as Options::on_broken gets it; OK if it does not.
  absl::Status broken() const;

  // Instances started so far, for tests.
  uint64_t starts() const;

 private:
  struct Slot {
    std::shared_ptr<PluginInstance> instance;  // Null: to be started at `next_start`.
    uint32_t calls = 0;
    int alone_waiting = 0;  // Calls that want it alone: others are not begun meanwhile.
    absl::Duration next_start;
    int failures = 0;  // Starts in a row that failed, or whose instance gave no answer.
  };

  PluginHost(Options options, std::unique_ptr<PluginSource> source, std::string stamp,
             absl::StatusOr<std::string> version);
  bool is_server() const { return options_.spec.kind == PluginSpec::Kind::kGrpc; }
  void Run();
  // Starts an instance and tests it.
  absl::StatusOr<std::shared_ptr<PluginInstance>> StartInstance();
  absl::Status RunSelfTest(PluginInstance& instance) const;
  // How long to wait after so many failures in a row.
  absl::Duration BackOff(int failures) const;
  // Waits for an instance that can take a call; with `alone`, for one without other calls.
  absl::StatusOr<Slot*> Acquire(absl::Duration deadline, bool alone);
  void Release(Slot* slot, bool alone, const absl::Status& outcome);
  // How many calls it takes at a time; 0 while it has no instance.
  static uint32_t LimitOf(const Slot& slot);
  // Notes which of the newest results are errors.
  void CountErrors(const std::vector<PluginResult>& results);
  absl::Status BrokenLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts that an instance ended on these items. Returns how often that has happened since they
  // were last answered. With `lost`, the connection may have been the reason: it counts only if the
  // plug-in has answered anything since the last time.
  int AddStrike(const std::vector<nlohmann::json>& items, bool lost);
  // Counts that these items were answered, so that they are no poison.
  void NoteAnswered(const std::vector<nlohmann::json>& items);
  void LogStderr(absl::string_view line);

  const Options options_;
  const std::unique_ptr<PluginSource> source_;
  const std::string stamp_, version_;
  log::Throttle stderr_lines_{absl::Seconds(1)};
  log::Throttle ends_{absl::Seconds(10)};

  mutable Mutex mu_;
  CondVar changed_;   // For callers.
  CondVar to_start_;  // For the thread, which each answer would wake otherwise.
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<PluginInstance> starting_ ABSL_GUARDED_BY(mu_);  // Not in a slot yet.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t starts_ ABSL_GUARDED_BY(mu_) = 0;
  bool ever_ran_ ABSL_GUARDED_BY(mu_) = false;
  int first_failures_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status last_failure_ ABSL_GUARDED_BY(mu_);  // Of a start.
  std::deque<bool> newest_ ABSL_GUARDED_BY(mu_);  // Whether each of the newest results is an error.
  int errors_ ABSL_GUARDED_BY(mu_) = 0;           // Those of newest_.
  std::string last_error_ ABSL_GUARDED_BY(mu_);
  // No answers until then, because of errors, and the reason for people.
  absl::Duration rest_until_ ABSL_GUARDED_BY(mu_);
  std::string rest_cause_ ABSL_GUARDED_BY(mu_);
  uint64_t answers_ ABSL_GUARDED_BY(mu_) = 0;  // Calls that were answered, and self-tests.
  struct Strikes {
    int count = 0;         // Instances that ended on the items.
    uint64_t answers = 0;  // What answers_ was at the last of them.
  };
  // By the SHA-256 of the items; the oldest are forgotten.
  std::map<std::string, Strikes> strikes_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> strike_order_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace sluice
