#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/daemon/daemon.h"
#include "common/rpc/backoff.h"
#include "common/rpc/caller.h"
#include "common/rpc/role.h"

namespace sluice::common::v1 {
class Event;
}  // namespace sluice::common::v1
namespace sluice::job::v1 {
class StepReport;
}  // namespace sluice::job::v1
namespace sluice::registry::v1 {
class Assignment;
class Capacity;
class HeartbeatResponse;
class Progress;
}  // namespace sluice::registry::v1

namespace sluice::daemon {

// The connection of a daemon to its controller. It registers the daemon and sends heartbeats. It
// receives the daemon's assignments, and sends progress, step reports and events.
//
// The daemon may start before its controller, and may outlive it. After any failure, and when the
// controller does not answer heartbeats, the link connects again, to the controller that leads
// (rpc::ConnectToLeader), with the same boot id, so the daemon keeps its incarnation. It then sends
// again the step reports and events that were not stored.
//
// Thread-safe. Owns two threads: `link` registers and writes heartbeats (and starts a reader and a
// watch for each stream); `deliver` runs the handlers, so that a slow handler delays no heartbeat.
class ControllerLink {
 public:
  struct Options {
    std::string controller;  // HOST:PORT, or several with commas between, of which one leads.
    std::string id;          // The daemon's id.
    rpc::Role role = rpc::Role::kUnspecified;
    std::map<std::string, std::string> addresses;  // HOST:PORT by listener: "grpc", "ops".
    std::map<std::string, std::string> labels;
    // Fills in what the daemon offers. May be empty.
    std::function<void(registry::v1::Capacity*)> capacity;
    uint32_t protocol_min = kProtocol;
    uint32_t protocol_max = kProtocol;
    rpc::BackoffOptions backoff;
    // Each heartbeat is answered. After this long without an answer, and three intervals of
    // heartbeats, the controller counts as gone: it may be paused, while another one leads. This is
    // shorter than its lease of the store, so the daemon has left it before it could wake as a
    // former leader.
    absl::Duration silence = absl::Seconds(6);
  };

  // They run on the `deliver` thread, one at a time. Each may be empty.
  struct Handlers {
    // The controller has registered the daemon under `incarnation`. Called before the first
    // assignment, and again when the incarnation changes.
    std::function<void(int64_t incarnation)> on_registered;
    // `assignments` lists all assignments of the daemon. Only the newest list is delivered. When
    // this returns, the controller is told that the list's generation is applied.
    std::function<void(const registry::v1::HeartbeatResponse& assignments)> on_assigned;
    // The controller asks the daemon to drain and end. Called once at most.
    std::function<void()> on_drain;
    // The controller will never accept this daemon (no common protocol, wrong role, a newer process
    // under the same id), and the link has ended. Usually calls Host::stop.
    std::function<void(absl::Status why)> on_refused;
  };

  ControllerLink(Options options, Handlers handlers);
  // Calls Stop().
  ~ControllerLink();
  ControllerLink(const ControllerLink&) = delete;
  ControllerLink& operator=(const ControllerLink&) = delete;

  void Start();
  // Ends the stream and joins the threads. No handler runs afterwards. Must not be called from a
  // handler. Idempotent.
  void Stop();
  // Waits until the controller has stored all step reports and events. Returns false after
  // `timeout`, or if the link was stopped.
  bool Flush(absl::Duration timeout);

  // The incarnation of the daemon; 0 before it is registered.
  int64_t incarnation() const;

  // Sets the progress of one job, replacing the former one. This and the next calls, up to
  // SetDraining(), cause a heartbeat at once.
  void SetProgress(const registry::v1::Progress& progress);
  void RemoveProgress(absl::string_view job);
  // Sends a step report, again and again until it is stored, or until the daemon is no longer
  // assigned to its job under the incarnation of its version, because it is never stored then. If
  // more than 10,000 wait, the oldest is dropped with a warning in the log.
  void ReportStep(const job::v1::StepReport& step);
  // The same for an event, with a limit of 1,000. Fills in seq, incarnation, role and daemon, and
  // `at` if it is unset.
  void RaiseEvent(common::v1::Event event);
  // Says in every heartbeat from now on that the daemon drains.
  void SetDraining();
  // Sets the load of the daemon, gauges by name. It replaces the former one, and is sent with the
  // next heartbeat.
  void SetLoad(const std::map<std::string, double>& load);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// The daemons that work for the job of an assignment, and may call this one for it.
std::vector<rpc::CallerTable::Worker> CallersOf(const registry::v1::Assignment& assignment);

}  // namespace sluice::daemon
