#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/plugins/protocol.h"

namespace sluice {

// A plug-in that runs, from its start to its end: a process of a program, or a stream of calls to a
// server. Several threads may call it at a time. Thread-safe.
class PluginInstance {
 public:
  virtual ~PluginInstance() = default;  // Calls End().

  // Waits up to `timeout` until it has described itself. Call it once, before Call(). After an
  // error it is no more:
  // UNAVAILABLE PLUGIN_START: it gave no description in time, or a wrong one.
  // UNAVAILABLE PLUGIN_UNREACHABLE: its server does not run, or cannot be reached.
  virtual absl::Status Describe(absl::Duration timeout) = 0;
  virtual const PluginDescription& description() const = 0;

  // Has the items scored. After any of these errors it is no more:
  // DEADLINE_EXCEEDED PLUGIN_DEADLINE: this call had no answer in `timeout`.
  // ABORTED PLUGIN_DIED: it ended, or wrote what is no answer, during this call.
  // ABORTED PLUGIN_TOO_LARGE: its server refused a message, and that of this call is large.
  // UNAVAILABLE PLUGIN_DIED: the connection to its server ended during this call.
  // UNAVAILABLE PLUGIN_GONE: it ended for a reason that has nothing to do with this call.
  // After this one it goes on:
  // INVALID_ARGUMENT TOO_LARGE: the items need a request of more than kMaxPluginLine bytes.
  virtual absl::StatusOr<std::vector<PluginResult>> Call(const std::vector<nlohmann::json>& items,
                                                         absl::Duration timeout) = 0;

  // OK while it runs, as far as is known.
  virtual absl::Status status() const = 0;
  // Ends it. `why` is the error of all calls, unless it has ended already.
  virtual void End(absl::Status why) = 0;
};

// What a plug-in is, and where it comes from. Thread-safe.
class PluginSource {
 public:
  // Takes a line that the plug-in writes to stderr. Called on a thread of the instance.
  using TakeLine = std::function<void(absl::string_view line)>;

  virtual ~PluginSource() = default;

  // Which plug-in it is, for messages that begin with "plug-in".
  virtual std::string name() const = 0;

  // What identifies the plug-in that would score now: scores of two versions are never mixed. A
  // server must be reached within `connect`, and say it within `timeout` after that. Errors say why
  // the version is not known.
  virtual absl::StatusOr<std::string> Version(absl::Duration connect, absl::Duration timeout) = 0;
  // Changes when Version() may have changed, and costs less; to be looked at every few seconds.
  // Take it before Version(), so that no change is missed.
  virtual std::string Stamp() = 0;
  // OK: what has described itself so is of this version.
  // UNAVAILABLE PLUGIN_CHANGED: it is not; the message says what people can do.
  virtual absl::Status CheckVersion(const PluginDescription& description,
                                    const std::string& version) = 0;

  // Starts an instance, to be described and tested next.
  // UNAVAILABLE PLUGIN_CHANGED: it would not be of this version.
  // RESOURCE_EXHAUSTED: all sandboxes are taken. Others: it cannot be started.
  virtual absl::StatusOr<std::shared_ptr<PluginInstance>> Start(const std::string& version,
                                                                TakeLine take_line) = 0;
  // Ends calls of this object that wait. Idempotent.
  virtual void Stop() = 0;

  // At a time. They take calls as their descriptions say.
  virtual int instances() const = 0;
  // Most time between two tries to start one.
  virtual absl::Duration most_back_off() const = 0;
};

}  // namespace sluice
