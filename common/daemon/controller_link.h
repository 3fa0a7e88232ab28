#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/daemon/daemon.h"
#include "common/rpc/backoff.h"
#include "common/rpc/role.h"

namespace sluice::common::v1 {
class Event;
}  // namespace sluice::common::v1
namespace sluice::job::v1 {
class StepReport;
}  // namespace sluice::job::v1
namespace sluice::registry::v1 {
class Capacity;
class HeartbeatResponse;
class Progress;
}  // namespace sluice::registry::v1

namespace sluice::daemon {

// A daemon's line to its controller: registers, beats, brings assignments down and progress, step
// reports and events up. The daemon may start before its controller and outlives it: whatever
// breaks, the link comes back with the same boot id, and so under the same incarnation, and sends
// again what was not stored.
//
// Thread-safe. Owns two threads: `link` registers and writes beats (and starts a reader for each
// stream); `deliver` runs the handlers, so a slow handler delays no beat.
class ControllerLink {
 public:
  struct Options {
    std::string controller;  // HOST:PORT.
    std::string id;          // Of the daemon.
    rpc::Role role = rpc::Role::kUnspecified;
    std::map<std::string, std::string> addresses;  // HOST:PORT by listener: "grpc", "ops".
    std::map<std::string, std::string> labels;
    // Fills in what the daemon offers; may be empty.
    std::function<void(registry::v1::Capacity*)> capacity;
    uint32_t protocol_min = kProtocol;
    uint32_t protocol_max = kProtocol;
    rpc::BackoffOptions backoff;
  };

  // All run on the `deliver` thread, one at a time; each may be empty.
  struct Handlers {
    // The daemon is known under `incarnation`; before its first assignment, and again if it
    // changes.
    std::function<void(int64_t incarnation)> registered;
    // A new generation of all the daemon's assignments. Only the newest is delivered. Once this
    // returns, its generation is told to the controller as applied.
    std::function<void(const registry::v1::HeartbeatResponse& level)> assigned;
    // The controller asks the daemon to drain and end. Once.
    std::function<void()> drain;
    // The controller will never take this daemon (no common protocol, wrong role, a newer process
    // under the same id): the link has ended. Usually Host::stop.
    std::function<void(absl::Status why)> refused;
  };

  ControllerLink(Options options, Handlers handlers);
  // Stop().
  ~ControllerLink();
  ControllerLink(const ControllerLink&) = delete;
  ControllerLink& operator=(const ControllerLink&) = delete;

  void Start();
  // Ends the stream and joins the threads; no handler runs afterwards. Not from a handler.
  // Idempotent.
  void Stop();
  // Waits until the controller has stored all step reports and events; false: not within `timeout`.
  bool Flush(absl::Duration timeout);

  // Of the daemon; 0 before it is registered.
  int64_t incarnation() const;

  // Each of these is sent at once.
  // A level: replaces what was said of the job.
  void SetProgress(const registry::v1::Progress& progress);
  void RemoveProgress(absl::string_view job);
  // Sent until stored. Beyond 10,000 the oldest is given up, with a warning in the log.
  void Report(const job::v1::StepReport& step);
  // The same, beyond 1,000. Fills in seq, incarnation, role and daemon, and `at` if unset.
  void Raise(common::v1::Event event);
  void SetDraining();
  // A level, sent with the next beat.
  void SetLoad(const std::map<std::string, double>& load);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::daemon
