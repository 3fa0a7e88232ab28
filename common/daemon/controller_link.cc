#include "common/daemon/controller_link.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/watchdog.h"
#include "common/log/log.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "sluice/registry/v1/registry.pb.h"

namespace sluice::daemon {
namespace {

constexpr size_t kMaxSteps = 10'000;
constexpr size_t kMaxEvents = 1'000;
constexpr size_t kMaxPerHeartbeat = 256;  // Most step reports, and most events, in one message.
constexpr absl::Duration kDefaultInterval = absl::Seconds(2);
constexpr int kSilentIntervals = 3;

// Whether an error of Register or Heartbeat will not go away by trying again.
bool IsFinal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition: return ReasonOf(status) != "NOT_YET";
    case absl::StatusCode::kAborted: return ReasonOf(status) == "FENCED";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented: return true;
    default: return false;
  }
}

// SHA-256 of the message, serialised with its maps in sorted order.
std::string HashOf(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return Sha256(bytes);
}

}  // namespace

struct ControllerLink::Impl {
  Impl(Options options_in, Handlers handlers_in)
      : options(std::move(options_in)), handlers(std::move(handlers_in)), boot(RandomId16()) {}

  const Options options;
  const Handlers handlers;
  const std::string boot;
  rpc::Cancel cancel;
  std::thread link_thread;
  std::thread deliver_thread;

  mutable Mutex mu;
  // Signalled when there is something to send or to deliver, when reports are stored, when the
  // stream breaks, and when the link stops.
  CondVar changed;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  bool broken ABSL_GUARDED_BY(mu) = false;    // The current stream has failed.
  bool send_now ABSL_GUARDED_BY(mu) = false;  // Something must be sent at once.
  int64_t incarnation ABSL_GUARDED_BY(mu) = 0;
  absl::Duration interval ABSL_GUARDED_BY(mu) = kDefaultInterval;  // Between two heartbeats.
  absl::Time heard ABSL_GUARDED_BY(mu);  // When the controller answered last.

  // What goes to the controller.
  std::map<std::string, registry::v1::Progress, std::less<>> progress ABSL_GUARDED_BY(mu);
  std::deque<job::v1::StepReport> steps ABSL_GUARDED_BY(mu);  // Not stored yet.
  std::deque<common::v1::Event> events ABSL_GUARDED_BY(mu);   // Not stored yet.
  uint64_t last_event ABSL_GUARDED_BY(mu) = 0;
  std::map<std::string, double> load ABSL_GUARDED_BY(mu);
  bool draining ABSL_GUARDED_BY(mu) = false;
  // Generation of the last assignments applied.
  uint64_t applied_generation ABSL_GUARDED_BY(mu) = 0;

  // What came from the controller, for the deliver thread.
  std::optional<int64_t> new_incarnation ABSL_GUARDED_BY(mu);  // Until it is delivered.
  // The newest assignments, until they are delivered.
  std::optional<registry::v1::HeartbeatResponse> new_assignments ABSL_GUARDED_BY(mu);
  // Generation of the newest assignments received, delivered or not.
  uint64_t received_generation ABSL_GUARDED_BY(mu) = 0;
  bool drain_due ABSL_GUARDED_BY(mu) = false;    // The drain handler is due.
  bool drain_asked ABSL_GUARDED_BY(mu) = false;  // The controller has asked; once is enough.
  std::optional<absl::Status> refusal ABSL_GUARDED_BY(mu);
  // The jobs of the assignments applied last. A new controller learns from them what runs here.
  std::vector<registry::v1::Running> running ABSL_GUARDED_BY(mu);

  // Called on the link thread.
  void RunLink();
  absl::Status Register(const rpc::Channel& channel);
  absl::Status RunHeartbeats(const rpc::Channel& channel, Watchdog::Loop* loop);
  registry::v1::HeartbeatRequest ComposeHeartbeat() ABSL_LOCKS_EXCLUDED(mu);
  bool AwaitNextHeartbeat() ABSL_LOCKS_EXCLUDED(mu);
  // Waits until the controller is silent, and then cancels the stream. Returns false if the stream
  // has broken, or the link is stopped, before that.
  bool CancelIfSilent(rpc::ClientStream* stream) ABSL_LOCKS_EXCLUDED(mu);
  void ReportRefusal(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu);

  // Called on a stream's reader thread. `newest` is the highest generation of this stream.
  void HandleResponse(registry::v1::HeartbeatResponse response, uint64_t* newest)
      ABSL_LOCKS_EXCLUDED(mu);

  // Called on the deliver thread.
  void RunDeliveries();
  void DeliverAssignments(const registry::v1::HeartbeatResponse& delivered);
  void SendSoon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    send_now = true;
    changed.NotifyAll();
  }
};

void ControllerLink::Impl::RunLink() {
  Watchdog::Loop loop(ProcessWatchdog(), "link");
  const auto channel = rpc::ConnectToLeader(options.controller);
  if (!channel.ok()) return ReportRefusal(channel.status());
  rpc::Backoff backoff(options.backoff);
  while (!cancel.triggered()) {
    absl::Status status = Register(**channel);
    if (status.ok()) {
      // RunHeartbeats() returns when the stream ends. The daemon then registers again, because the
      // controller may have restarted.
      backoff.Reset();
      status = RunHeartbeats(**channel, &loop);
    }
    if (cancel.triggered()) return;
    if (IsFinal(status)) return ReportRefusal(status);
    log::Warning("controller_away", {{"controller", options.controller}, {"cause", status}});
    if (cancel.WaitFor(backoff.Next(DetailOf(status).retry_after))) return;
  }
}

absl::Status ControllerLink::Impl::Register(const rpc::Channel& channel) {
  registry::v1::RegisterRequest request;
  request.set_daemon(options.id);
  request.set_role(static_cast<rpc::v1::Role>(options.role));
  request.set_boot(boot);
  request.set_build(kBuild);
  request.set_protocol_min(options.protocol_min);
  request.set_protocol_max(options.protocol_max);
  request.mutable_addresses()->insert(options.addresses.begin(), options.addresses.end());
  request.mutable_labels()->insert(options.labels.begin(), options.labels.end());

  if (options.capacity) options.capacity(request.mutable_capacity());
  {
    MutexLock lock(&mu);
    request.set_incarnation(incarnation);
    request.mutable_running()->Add(running.begin(), running.end());
  }

  registry::v1::RegisterResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(
      channel, request, &response,
      {.give_up = absl::InfiniteDuration(), .cancel = &cancel, .backoff = options.backoff}));

  log::Info("registered",
            {{"controller", channel.address()}, {"incarnation", response.incarnation()}});

  MutexLock lock(&mu);
  if (response.has_beat()) interval = rpc::FromProto(response.beat());
  if (incarnation != response.incarnation()) {
    incarnation = response.incarnation();
    new_incarnation = incarnation;
    // The events that wait are sent under the new incarnation, so their seq counts within it.
    for (common::v1::Event& event : events) event.set_incarnation(incarnation);
    changed.NotifyAll();
  }
  return absl::OkStatus();
}

absl::Status ControllerLink::Impl::RunHeartbeats(const rpc::Channel& channel,
                                                 Watchdog::Loop* loop) {
  {
    MutexLock lock(&mu);
    broken = false;
    heard = absl::Now();
  }
  const rpc::Channel::Peer peer = channel.peer();
  rpc::ClientStream stream(channel, *registry::v1::HeartbeatRequest::descriptor(), &cancel);
  std::thread reader([&] {
    uint64_t newest = 0;
    for (registry::v1::HeartbeatResponse response; stream.Read(&response);)
      HandleResponse(std::move(response), &newest);
    MutexLock lock(&mu);
    broken = true;
    changed.NotifyAll();
  });

  // A thread of its own, because Write() blocks while a paused controller reads nothing.
  bool silent = false;
  std::thread watch([&] { silent = CancelIfSilent(&stream); });

  // All but Write() takes no longer than `interval`.
  do {
    loop->Tick();
    const registry::v1::HeartbeatRequest heartbeat = ComposeHeartbeat();
    loop->Rest();
    if (!stream.Write(heartbeat)) break;
    loop->Tick();
  } while (AwaitNextHeartbeat());
  loop->Rest();
  // If Write() failed, the reader must be ended here. If the server ended the stream, its status is
  // kept.
  stream.TryCancel();
  reader.join();  // It has set `broken`, so `watch` ends too.
  watch.join();
  const absl::Status status = stream.Finish();
  if (!silent) return status;

  const absl::Status why =
      absl::UnavailableError(absl::StrCat(peer.name, " does not answer heartbeats"));
  (void)peer.MoveOn(why);
  return why;
}

bool ControllerLink::Impl::CancelIfSilent(rpc::ClientStream* stream) {
  {
    MutexLock lock(&mu);
    while (true) {
      if (broken || stopped) return false;
      const absl::Time until = heard + std::max(options.silence, kSilentIntervals * interval);
      const absl::Duration left = until - absl::Now();
      if (left <= absl::ZeroDuration()) break;
      changed.WaitFor(&mu, left);
    }
  }
  stream->TryCancel();
  return true;
}

registry::v1::HeartbeatRequest ControllerLink::Impl::ComposeHeartbeat() {
  registry::v1::HeartbeatRequest request;

  MutexLock lock(&mu);
  send_now = false;
  request.set_daemon(options.id);
  request.set_incarnation(incarnation);
  request.set_generation(applied_generation);
  request.mutable_load()->insert(load.begin(), load.end());
  for (const auto& [job, said] : progress) *request.add_progress() = said;
  for (size_t i = 0; i < std::min(steps.size(), kMaxPerHeartbeat); ++i)
    *request.add_steps() = steps[i];
  for (size_t i = 0; i < std::min(events.size(), kMaxPerHeartbeat); ++i)
    *request.add_events() = events[i];
  request.set_draining(draining);
  return request;
}

// Waits until the next heartbeat is due or something must be sent at once. Returns false if the
// stream is broken or the link is stopped.
bool ControllerLink::Impl::AwaitNextHeartbeat() {
  MutexLock lock(&mu);
  const absl::Time due = absl::Now() + interval;
  while (!send_now && !broken && !stopped) {
    const absl::Duration left = due - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    changed.WaitFor(&mu, left);
  }
  return !broken && !stopped;
}

void ControllerLink::Impl::ReportRefusal(const absl::Status& why) {
  log::Error("controller_refuses", {{"controller", options.controller}, {"cause", why}});
  MutexLock lock(&mu);
  refusal = why;
  changed.NotifyAll();
}

void ControllerLink::Impl::HandleResponse(registry::v1::HeartbeatResponse response,
                                          uint64_t* newest) {
  MutexLock lock(&mu);
  heard = absl::Now();
  // Forget the reports that are stored. Two trainer groups may train a step of the same number, so
  // the group counts first. A controller of an earlier build names no group.
  const size_t before = steps.size() + events.size();
  for (const registry::v1::StepStored& stored : response.steps_stored()) {
    std::erase_if(steps, [&](const job::v1::StepReport& step) {
      if (step.job() != stored.job()) return false;
      const int64_t group =
          stored.incarnation() == 0 ? step.version().incarnation() : stored.incarnation();
      return std::pair(step.version().incarnation(), step.k()) <= std::pair(group, stored.k());
    });
  }
  while (!events.empty() && events.front().seq() <= response.events_stored()) events.pop_front();
  // A message carries kMaxPerHeartbeat reports at most. When some are stored, send the rest at
  // once.
  if (steps.size() + events.size() < before && steps.size() + events.size() > 0) send_now = true;

  if (response.drain() && !drain_asked) drain_due = drain_asked = true;
  // Within a stream a lower generation is late and is ignored. A controller that restarted may
  // count from any number, so in a new stream any generation but the last received one is new.
  if (response.generation() > *newest) {
    *newest = response.generation();
    if (response.generation() != received_generation) {
      received_generation = response.generation();
      new_assignments = std::move(response);
    }
  }
  changed.NotifyAll();
}

void ControllerLink::Impl::RunDeliveries() {
  while (true) {
    std::optional<int64_t> registered;
    std::optional<registry::v1::HeartbeatResponse> assignments;
    std::optional<absl::Status> refused;
    bool drain = false;
    {
      MutexLock lock(&mu);
      while (!stopped && !new_incarnation && !new_assignments && !drain_due && !refusal)
        changed.Wait(&mu);
      if (stopped) return;
      std::swap(registered, new_incarnation);
      std::swap(assignments, new_assignments);
      std::swap(refused, refusal);
      std::swap(drain, drain_due);
    }
    // Called without the lock, so that a handler may call the link.
    if (registered && handlers.on_registered) handlers.on_registered(*registered);
    if (assignments) DeliverAssignments(*assignments);
    if (drain && handlers.on_drain) handlers.on_drain();
    if (refused && handlers.on_refused) handlers.on_refused(*refused);
  }
}

void ControllerLink::Impl::DeliverAssignments(const registry::v1::HeartbeatResponse& delivered) {
  if (handlers.on_assigned) handlers.on_assigned(delivered);
  std::vector<registry::v1::Running> now;
  for (const registry::v1::Assignment& assignment : delivered.jobs()) {
    // A stopped job no longer runs here.
    if (assignment.phase() == registry::v1::ASSIGNMENT_PHASE_STOP) continue;
    registry::v1::Running& run = now.emplace_back();
    run.set_job(assignment.job());
    run.set_incarnation(assignment.incarnation());
    run.set_spec_hash(HashOf(assignment.spec()));
    run.set_generation(delivered.generation());
  }

  MutexLock lock(&mu);
  running = std::move(now);
  applied_generation = delivered.generation();
  SendSoon();
}

ControllerLink::ControllerLink(Options options, Handlers handlers)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(handlers))) {}

ControllerLink::~ControllerLink() { Stop(); }

void ControllerLink::Start() {
  impl_->link_thread = std::thread([this] { impl_->RunLink(); });
  impl_->deliver_thread = std::thread([this] { impl_->RunDeliveries(); });
}

void ControllerLink::Stop() {
  {
    MutexLock lock(&impl_->mu);
    impl_->stopped = true;
    impl_->changed.NotifyAll();
  }
  impl_->cancel.Trigger();
  if (impl_->link_thread.joinable()) impl_->link_thread.join();
  if (impl_->deliver_thread.joinable()) impl_->deliver_thread.join();
}

bool ControllerLink::Flush(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(&impl_->mu);
  while (!impl_->steps.empty() || !impl_->events.empty()) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration() || impl_->stopped) return false;
    impl_->changed.WaitFor(&impl_->mu, left);
  }
  return true;
}

int64_t ControllerLink::incarnation() const {
  MutexLock lock(&impl_->mu);
  return impl_->incarnation;
}

void ControllerLink::SetProgress(const registry::v1::Progress& progress) {
  MutexLock lock(&impl_->mu);
  impl_->progress[progress.job()] = progress;
  impl_->SendSoon();
}

void ControllerLink::RemoveProgress(absl::string_view job) {
  MutexLock lock(&impl_->mu);
  impl_->progress.erase(std::string(job));
  impl_->SendSoon();
}

void ControllerLink::ReportStep(const job::v1::StepReport& step) {
  bool full = false;
  {
    MutexLock lock(&impl_->mu);
    full = impl_->steps.size() >= kMaxSteps;
    if (full) impl_->steps.pop_front();
    impl_->steps.push_back(step);
    impl_->SendSoon();
  }
  if (full) log::Warning("step_report_given_up", {{"limit", kMaxSteps}});
}

void ControllerLink::RaiseEvent(common::v1::Event event) {
  bool full = false;
  {
    MutexLock lock(&impl_->mu);
    event.set_seq(++impl_->last_event);
    event.set_incarnation(impl_->incarnation);
    event.set_role(static_cast<rpc::v1::Role>(impl_->options.role));
    event.set_daemon(impl_->options.id);
    if (!event.has_at()) *event.mutable_at() = rpc::ToProto(absl::Now());
    full = impl_->events.size() >= kMaxEvents;
    if (full) impl_->events.pop_front();
    impl_->events.push_back(std::move(event));
    impl_->SendSoon();
  }
  if (full) log::Warning("event_given_up", {{"limit", kMaxEvents}});
}

void ControllerLink::SetDraining() {
  MutexLock lock(&impl_->mu);
  impl_->draining = true;
  impl_->SendSoon();
}

void ControllerLink::SetLoad(const std::map<std::string, double>& load) {
  MutexLock lock(&impl_->mu);
  impl_->load = load;
}

std::vector<rpc::CallerTable::Worker> CallersOf(const registry::v1::Assignment& assignment) {
  std::vector<rpc::CallerTable::Worker> workers;
  for (const common::v1::Worker& peer : assignment.peers())
    workers.push_back({peer.id(), static_cast<rpc::Role>(peer.role()), peer.incarnation()});
  return workers;
}

}  // namespace sluice::daemon
