#include "common/weights/object_fetcher.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/client.h"
#include "common/weights/relay.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

// The trainer answers all rollouts, and nobody knows better what there is. A disk may be slow at
// times.
constexpr int kPatienceWithOrigin = 5;
// For calls to the trainer which can do without it.
constexpr absl::Duration kShortCall = absl::Seconds(2);

// For people, by the key that HolderKey() gives.
std::string HolderName(const std::string& key) {
  return key.empty() || key.front() == ' ' ? absl::StrCat("the trainer", key) : key;
}

bool IsGone(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

}  // namespace

std::string HolderKey(const std::string& id, const TransportCaps& caps) {
  const bool apart = caps.same_host || caps.broadcasts || caps.reads_memory;
  return apart ? absl::StrCat(id, " by ", caps.name) : id;
}

ObjectFetcher::ObjectFetcher(Options options)
    : options_(std::move(options)),
      alone_(options_.holders.size() == 1 ||
             std::all_of(options_.holders.begin(), options_.holders.end(),
                         [](const Holder& holder) { return holder.id == kOriginId; })) {}

bool ObjectFetcher::cancelled() const {
  return options_.cancel != nullptr && options_.cancel->triggered();
}

absl::Status ObjectFetcher::Fetch(absl::Span<const std::string> ids, const ObjectHandler& on_object,
                                  const WholeVersion* whole) {
  holders_failed_ = false;
  std::vector<std::string> wanted;
  for (const std::string& id : ids) {
    auto held =
        options_.relay == nullptr ? nullptr : options_.relay->Find(id, options_.version).object;
    // It was right when it came, but may lie in memory since long ago.
    if (held != nullptr && Sha256(*held) != id) {
      log::Error("weights_relay_damaged",
                 {{"job_id", options_.caller.job}, {"object", ShortObjectId(id)}});
      options_.relay->Drop(id);
      held.reset();
    }
    if (held == nullptr) wanted.push_back(id);
    else SLUICE_RETURN_IF_ERROR(on_object(*held));
  }

  absl::Status error = last_error_;
  bool origin_asked = false;
  for (size_t at = current_; at < options_.holders.size() && !wanted.empty(); ++at) {
    const Holder& holder = options_.holders[at];
    const bool is_last = at + 1 == options_.holders.size();
    bool handler_failed = false;
    const FetchEnd end = FetchFrom(holder, is_last, &wanted, on_object, whole, &handler_failed);
    ClearWait();
    if (handler_failed) {
      holders_failed_ = false;
      return end.status;
    }
    holders_failed_ = true;  // Unless nothing is missing in the end.
    if (cancelled()) return absl::CancelledError("the download was cancelled");
    // The trainer's word counts most, as it sends it itself.
    const bool is_origin = holder.id == kOriginId && holder.transport->caps().calls;
    if (!end.status.ok() && !origin_asked) error = end.status;
    origin_asked |= is_origin;

    if (!end.fault.has_value()) continue;
    if (is_origin && *end.fault == HolderFault::kLied) return end.status;
    if (alone_ && is_last) return end.status;
    LeaveHolder(HolderKey(holder.id, holder.transport->caps()), *end.fault, end.status);
    current_ = std::max(current_, at + 1);
  }
  if (wanted.empty()) {
    holders_failed_ = false;
    return absl::OkStatus();
  }
  if (error.ok())
    error = absl::UnavailableError(absl::StrCat(
        "no holder of version ", options_.version.str(), " is left: ", wanted.size(),
        " objects have not come, the first of them is ", ShortObjectId(wanted.front())));
  return error;
}

FetchEnd ObjectFetcher::FetchFrom(const Holder& holder, bool is_last,
                                  std::vector<std::string>* wanted, const ObjectHandler& on_object,
                                  const WholeVersion* whole, bool* handler_failed) {
  const std::string key = HolderKey(holder.id, holder.transport->caps());
  const std::string transport(holder.transport->caps().name);
  const std::vector<std::string> ids = std::exchange(*wanted, {});
  const auto take = [&](const std::string& id, absl::string_view object) {
    stats_.used += object.size();
    stats_.used_by_transport[transport] += object.size();
    stats_.parent = holder.id;
    stats_.transport = transport;
    stats_.why = holder.why;
    if (options_.relay != nullptr)
      options_.relay->Add(id, std::make_shared<const std::string>(object));
    return on_object(object);
  };
  WantedObjects* open = nullptr;
  const auto show_wait = [&] {
    if (open->left() > 0) SetWait(open->first_open(), holder.id, open->left());
  };
  WantedObjects objects(ids, take, [&](uint64_t bytes) {
    stats_.bytes += bytes;
    show_wait();
  });
  open = &objects;
  show_wait();

  const bool is_origin = holder.id == kOriginId;
  // Others may themselves wait for this rollout, so only the trainer is waited for without end.
  FetchEnd end = holder.transport->Fetch(
      {.version = options_.version,
       .whole = whole,
       .key = key,
       .name = HolderName(key),
       .is_patient = is_origin && is_last,
       .patience = is_origin || holder.id == kFolderId ? kPatienceWithOrigin : 1,
       .history = options_.history,
       .cancel = options_.cancel,
       .clock = options_.clock},
      &objects);
  // What has not arrived is asked of the next holder.
  *wanted = objects.ListNotArrived();
  *handler_failed = objects.taker_failed();
  return end;
}

void ObjectFetcher::LeaveHolder(const std::string& key, HolderFault fault,
                                const absl::Status& why) {
  options_.history->AddFault(key, fault, options_.clock->Monotonic());
  last_error_ = why;
  ++stats_.holders_left;
  stats_.last_fault =
      absl::StrCat(HolderName(key), " ", HolderFaultName(fault), ": ", why.message());
  log::Write(fault == HolderFault::kLied ? log::Level::kError : log::Level::kWarning,
             "weights_holder_left",
             {{"job_id", options_.caller.job},
              {"version", options_.version.str()},
              {"holder", HolderName(key)},
              {"fault", HolderFaultName(fault)},
              {"cause", why}});
}

void ObjectFetcher::Distrust(const std::string& holder, const absl::Status& why) {
  LeaveHolder(holder, HolderFault::kLied, why);
}

Transport* ObjectFetcher::FindOrigin() const {
  for (const Holder& holder : options_.holders) {
    if (holder.id == kOriginId && holder.transport->caps().calls) return holder.transport.get();
  }
  return nullptr;
}

absl::StatusOr<std::string> ObjectFetcher::AskForList(const weights::v1::ListRequest& request,
                                                      weights::v1::ListResponse* response,
                                                      const std::function<bool()>& is_useful) {
  absl::Status error = absl::UnavailableError(absl::StrCat(
      "the trainer is gone, and none of ", options_.holders.size(), " holders lists a way to ",
      "version ", options_.version.str(), "; it is asked for again later"));
  Transport* const origin = FindOrigin();
  if (origin != nullptr && !origin_gone_) {
    rpc::CallOptions options{.cancel = options_.cancel};
    if (!alone_) options.deadline = options.give_up = kShortCall;
    error = origin->Call(request, response, options);
    if (error.ok()) return stats_.lister = std::string(kOriginId);
    if (alone_ || !IsGone(error) || cancelled()) return error;
    origin_gone_ = true;
  }
  for (size_t at = current_; at < options_.holders.size(); ++at) {
    const Holder& holder = options_.holders[at];
    if (holder.id == kOriginId) continue;
    const absl::Status answered =
        holder.transport->caps().calls
            ? holder.transport->Call(
                  request, response,
                  {.deadline = kShortCall, .give_up = kShortCall, .cancel = options_.cancel})
            : holder.transport->List(response);
    // The answer may be OK and yet of no use.
    if (cancelled()) return absl::CancelledError("the download was cancelled");
    if (answered.ok() && is_useful()) return stats_.lister = holder.id;
  }
  return error;
}

absl::Status ObjectFetcher::TellOrigin(const google::protobuf::Message& request,
                                       google::protobuf::Message* response, rpc::Cancel* cancel) {
  Transport* const origin = FindOrigin();
  if (origin == nullptr || origin_gone_) return absl::OkStatus();
  rpc::CallOptions options{.cancel = cancel};
  if (!alone_) options.deadline = options.give_up = kShortCall;
  const absl::Status told = origin->Call(request, response, options);
  const bool cancelled = cancel != nullptr && cancel->triggered();
  if (told.ok() || alone_ || !IsGone(told) || cancelled) return told;
  origin_gone_ = true;
  return absl::OkStatus();
}

void ObjectFetcher::SetWait(const std::string& object, const std::string& holder, size_t objects) {
  MutexLock lock(&mu_);
  wait_ =
      Wait{ShortObjectId(object), holder, options_.clock->Monotonic(), objects, options_.version};
}
void ObjectFetcher::ClearWait() {
  MutexLock lock(&mu_);
  wait_.reset();
}
std::optional<ObjectFetcher::Wait> ObjectFetcher::wait() const {
  MutexLock lock(&mu_);
  return wait_;
}

}  // namespace sluice
