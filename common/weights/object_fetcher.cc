#include "common/weights/object_fetcher.h"

#include <pthread.h>

#include <algorithm>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/weights/relay.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxObject = 64 << 20;
// The deadline of one stream. Callers fetch some tens of objects at once, so that weights of any
// size can be fetched.
constexpr absl::Duration kStreamDeadline = absl::Minutes(1);
// How long a holder may keep a request whose objects it does not have yet.
constexpr absl::Duration kParked = absl::Seconds(30);
// The largest piece that a holder sends, by which the time to wait for it is judged.
constexpr uint64_t kPieceBytes = 256 << 10;
// The trainer answers all rollouts, and nobody knows better what there is.
constexpr int kPatienceWithOrigin = 5;
// For calls to the trainer which can do without it.
constexpr absl::Duration kShortCall = absl::Seconds(2);

std::string ShortId(const std::string& id) { return ToHex(id).substr(0, 16); }

std::string HolderName(const std::string& id) { return id == kOriginId ? "the trainer" : id; }

bool IsGone(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

// Ends a stream in which nothing comes for too long. Owns a thread.
class SilenceGuard {
 public:
  SilenceGuard(rpc::ClientStream* stream, absl::Duration limit) : stream_(stream), limit_(limit) {
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "sluice-silence");
  }
  ~SilenceGuard() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  // A message has come. The next one may take `limit`.
  void Restart(absl::Duration limit) {
    MutexLock lock(&mu_);
    limit_ = limit;
    ++messages_;
    changed_.NotifyAll();
  }
  bool fired() const {
    MutexLock lock(&mu_);
    return fired_;
  }

 private:
  void Run() {
    MutexLock lock(&mu_);
    while (!stopping_) {
      const uint64_t seen = messages_;
      const absl::Duration until = Clock::Real()->Monotonic() + limit_;
      while (!stopping_ && messages_ == seen) {
        const absl::Duration left = until - Clock::Real()->Monotonic();
        if (left <= absl::ZeroDuration()) {
          fired_ = true;
          stream_->TryCancel();
          return;
        }
        changed_.WaitFor(&mu_, left);
      }
    }
  }

  rpc::ClientStream* const stream_;
  mutable Mutex mu_;
  CondVar changed_;
  absl::Duration limit_ ABSL_GUARDED_BY(mu_);
  uint64_t messages_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool fired_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace

common::v1::Call MakeCall(const WeightCaller& caller) {
  common::v1::Call call;
  call.mutable_job()->set_job(caller.job);
  call.mutable_job()->set_worker(caller.worker);
  call.mutable_job()->set_incarnation(caller.incarnation);
  return call;
}

// Puts the pieces of one request together. The pieces of an object come in order, and no others
// come between them; objects come in any order, and perhaps twice.
class ObjectFetcher::Assembly {
 public:
  explicit Assembly(absl::Span<const std::string> ids) : ids_(ids), open_(ids.size(), true) {
    left_ = ids.size();
  }

  // Takes a piece. Returns true if it completes an object, which is then in object().
  absl::StatusOr<bool> Add(const weights::v1::FetchHeader& header, const rpc::Frame& frame,
                           Stats* stats) {
    const size_t bytes = frame.payload_bytes();
    stats->bytes += bytes;
    if (header.index() >= ids_.size()) {
      return absl::DataLossError(absl::StrCat("a piece of object number ", header.index(),
                                              " came, but ", ids_.size(), " were asked for"));
    }
    if (!open_[header.index()]) return false;  // It came before.

    const std::string& id = ids_[header.index()];
    if (header.offset() == 0) {
      SLUICE_RETURN_IF_ERROR(CheckEnded());
      index_ = header.index();
      size_ = header.size();
    }
    if (index_ != header.index() || header.offset() != object_.size() || size_ != header.size())
      return absl::DataLossError(absl::StrCat(
          "the pieces of objects came out of order: one of object ", ShortId(id), " of ",
          header.size(), " bytes at ", header.offset(), " came when ", object_.size(), " of ",
          size_, " bytes of object ", ShortId(ids_[index_]), " were there"));
    if (size_ > kMaxObject || bytes > size_ - object_.size() || bytes == 0) {
      return absl::DataLossError(absl::StrCat("object ", ShortId(id), " of ", size_,
                                              " bytes came with a piece of ", bytes, " at ",
                                              object_.size(), "; the limit is ", kMaxObject));
    }

    const size_t at = object_.size();
    object_.resize(at + bytes);
    rpc::PayloadReader reader(frame);
    SLUICE_ASSIGN_OR_RETURN(const uint32_t crc, reader.Copy(bytes, object_.data() + at));
    if (crc != header.crc32c())
      return Error(
          absl::StatusCode::kDataLoss, "BAD_CRC",
          absl::StrCat("the piece of object ", ShortId(id), " at byte ", at, " has a wrong CRC"));

    if (object_.size() < size_) return false;
    if (Sha256(object_) != id)
      return Error(absl::StatusCode::kDataLoss, "BAD_DIGEST",
                   absl::StrCat("object ", ShortId(id), " has another SHA-256 than its id"));
    Close(header.index());
    stats->used += size_;
    return true;
  }

  // DATA_LOSS: an object has begun and did not end.
  absl::Status CheckEnded() const {
    if (object_.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("object ", ShortId(ids_[index_]), " ended after ",
                                            object_.size(), " of ", size_, " bytes"));
  }

  // The object is not there. Returns whether it was asked for.
  bool AddMissing(const std::string& id) {
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (!open_[i] || ids_[i] != id) continue;
      Close(i);
      return true;
    }
    return false;
  }

  const std::string& id() const { return ids_[index_]; }  // Of object().
  std::string TakeObject() { return std::exchange(object_, {}); }
  size_t left() const { return left_; }
  const std::string& first_open() const {
    return ids_[static_cast<size_t>(std::find(open_.begin(), open_.end(), true) - open_.begin())];
  }

 private:
  void Close(size_t index) {
    open_[index] = false;
    --left_;
  }

  const absl::Span<const std::string> ids_;
  std::vector<bool> open_;  // Those that have neither come nor are missing.
  size_t left_ = 0;         // Their number.
  // The object that comes in pieces; empty between two objects.
  std::string object_;
  size_t index_ = 0;
  uint64_t size_ = 0;
};

ObjectFetcher::ObjectFetcher(Options options) : options_(std::move(options)) {}

bool ObjectFetcher::cancelled() const {
  return options_.cancel != nullptr && options_.cancel->triggered();
}

absl::Status ObjectFetcher::Fetch(absl::Span<const std::string> ids,
                                  const ObjectHandler& on_object) {
  holders_failed_ = false;
  std::vector<std::string> wanted;
  for (const std::string& id : ids) {
    auto held =
        options_.relay == nullptr ? nullptr : options_.relay->Find(id, options_.version).object;
    // It was right when it came, but may lie in memory since long ago.
    if (held != nullptr && Sha256(*held) != id) {
      log::Error("weights_relay_damaged",
                 {{"job_id", options_.caller.job}, {"object", ShortId(id)}});
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
    // Others may themselves wait for this rollout, so only the trainer is waited for without end.
    const bool is_patient = holder.id == kOriginId && at + 1 == options_.holders.size();
    const Outcome outcome = FetchFrom(holder, is_patient, &wanted, on_object);
    ClearWait();
    if (outcome.handler_failed) {
      holders_failed_ = false;
      return outcome.status;
    }
    holders_failed_ = true;  // Unless nothing is missing in the end.
    if (cancelled()) return absl::CancelledError("the download was cancelled");
    // The trainer's word counts most.
    if (!outcome.status.ok() && !origin_asked) error = outcome.status;
    origin_asked |= holder.id == kOriginId;

    if (!outcome.fault.has_value()) continue;
    if (holder.id == kOriginId && *outcome.fault == HolderFault::kLied) return outcome.status;
    if (options_.holders.size() == 1) return outcome.status;
    LeaveHolder(holder, *outcome.fault, outcome.status);
    current_ = std::max(current_, at + 1);
  }
  if (wanted.empty()) {
    holders_failed_ = false;
    return absl::OkStatus();
  }
  if (error.ok())
    error = absl::UnavailableError(
        absl::StrCat("no holder of version ", options_.version.str(), " is left: ", wanted.size(),
                     " objects have not come, the first of them is ", ShortId(wanted.front())));
  return error;
}

ObjectFetcher::Outcome ObjectFetcher::FetchFrom(const Holder& holder, bool is_patient,
                                                std::vector<std::string>* wanted,
                                                const ObjectHandler& on_object) {
  const std::vector<std::string> ids = std::exchange(*wanted, {});
  weights::v1::FetchRequest request;
  *request.mutable_call() = MakeCall(options_.caller);
  for (const std::string& id : ids) request.add_objects()->set_id(id);
  *request.mutable_wait() = rpc::ToProto(kParked);
  *request.mutable_version() = rpc::ToProto(options_.version);

  HolderHistory& history = *options_.history;
  const auto limit = [&] {
    const absl::Duration usual = history.SilenceLimit(kPieceBytes);
    return holder.id == kOriginId ? kPatienceWithOrigin * usual : usual;
  };
  Assembly assembly(ids);
  std::set<std::string> missing, arrived;
  // What has not arrived is asked of the next holder.
  const auto end = [&](absl::Status status, std::optional<HolderFault> fault) {
    for (const std::string& id : ids) {
      if (!arrived.contains(id)) wanted->push_back(id);
    }
    return Outcome{.status = std::move(status), .fault = fault};
  };

  rpc::ClientStream stream(*holder.channel, *weights::v1::FetchRequest::descriptor(),
                           options_.cancel, kStreamDeadline);
  std::optional<SilenceGuard> guard;
  if (!is_patient) guard.emplace(&stream, limit());
  SetWait(assembly.first_open(), holder.id, assembly.left());
  stream.Write(request);
  stream.WritesDone();

  rpc::Frame frame;
  absl::Duration last = options_.clock->Monotonic();
  while (assembly.left() > 0 && stream.ReadFrame(&frame)) {
    if (guard) guard->Restart(limit());
    weights::v1::FetchHeader header;
    if (absl::Status parsed = frame.ParseHeader(&header); !parsed.ok())
      return end(absl::DataLossError(parsed.message()), HolderFault::kLied);
    const absl::Duration waited = rpc::FromProto(header.waited());

    for (const std::string& id : header.missing()) {
      if (assembly.AddMissing(id)) missing.insert(id);
    }
    if (header.missing_size() > 0) continue;
    if (header.size() == 0) {  // A beat: the holder is alive, and waits itself.
      if (is_patient || waited < history.limits().starved) continue;
      return end(absl::UnavailableError(absl::StrCat(HolderName(holder.id), " has waited ",
                                                     absl::FormatDuration(waited), " for object ",
                                                     ShortId(assembly.first_open()), " itself")),
                 HolderFault::kStarved);
    }

    const absl::Duration now = options_.clock->Monotonic();
    const absl::StatusOr<bool> done = assembly.Add(header, frame, &stats_);
    if (!done.ok()) return end(done.status(), HolderFault::kLied);
    history.AddPiece(holder.id, frame.payload_bytes(),
                     std::max(absl::ZeroDuration(), now - last - waited));
    last = now;
    if (*done) {
      stats_.parent = holder.id;
      const std::string& id = assembly.id();
      auto object = std::make_shared<const std::string>(assembly.TakeObject());
      arrived.insert(id);
      if (options_.relay != nullptr) options_.relay->Add(id, object);
      if (absl::Status taken = on_object(*object); !taken.ok())
        return {.status = std::move(taken), .handler_failed = true};
    }

    if (assembly.left() == 0) break;
    SetWait(assembly.first_open(), holder.id, assembly.left());
    if (!is_patient && holder.id != kOriginId && history.IsSlow(holder.id)) {
      return end(absl::UnavailableError(absl::StrCat(HolderName(holder.id),
                                                     " sends at less than half of the usual rate")),
                 HolderFault::kSlow);
    }
  }

  if (assembly.left() == 0) {
    if (missing.empty()) return {};
    return end(absl::NotFoundError(absl::StrCat(HolderName(holder.id), " no longer has object ",
                                                ShortId(*missing.begin()))),
               std::nullopt);
  }
  absl::Status status = stream.Finish();
  if (guard && guard->fired()) {
    return end(absl::DeadlineExceededError(absl::StrCat(HolderName(holder.id), " sent nothing for ",
                                                        absl::FormatDuration(limit()))),
               HolderFault::kSilent);
  }
  if (status.ok()) {
    // An end in the middle of an object is no end that an honest holder makes.
    if (absl::Status ended = assembly.CheckEnded(); !ended.ok())
      return end(std::move(ended), HolderFault::kLied);
    status = absl::UnavailableError(absl::StrCat(HolderName(holder.id), " ended the stream with ",
                                                 assembly.left(), " of ", ids.size(),
                                                 " objects missing"));
  }
  return end(std::move(status), HolderFault::kGone);
}

void ObjectFetcher::LeaveHolder(const Holder& holder, HolderFault fault, const absl::Status& why) {
  options_.history->AddFault(holder.id, fault, options_.clock->Monotonic());
  last_error_ = why;
  ++stats_.holders_left;
  stats_.last_fault =
      absl::StrCat(HolderName(holder.id), " ", HolderFaultName(fault), ": ", why.message());
  log::Write(fault == HolderFault::kLied ? log::Level::kError : log::Level::kWarning,
             "weights_holder_left",
             {{"job_id", options_.caller.job},
              {"version", options_.version.str()},
              {"holder", HolderName(holder.id)},
              {"fault", HolderFaultName(fault)},
              {"cause", why}});
}

void ObjectFetcher::Distrust(const std::string& holder, const absl::Status& why) {
  LeaveHolder({.id = holder}, HolderFault::kLied, why);
}

absl::StatusOr<std::string> ObjectFetcher::Ask(const google::protobuf::Message& request,
                                               google::protobuf::Message* response,
                                               const std::function<bool()>& is_useful) {
  const bool alone = options_.holders.size() == 1;
  absl::Status error = absl::UnavailableError(absl::StrCat(
      "the trainer is gone, and none of ", options_.holders.size(), " holders lists a way to ",
      "version ", options_.version.str(), "; it is asked for again later"));
  if (!origin_gone_) {
    for (const Holder& holder : options_.holders) {
      if (holder.id != kOriginId) continue;
      rpc::CallOptions options{.cancel = options_.cancel};
      if (!alone) options.deadline = options.give_up = kShortCall;
      error = rpc::Call(*holder.channel, request, response, options);
      if (error.ok()) return stats_.lister = holder.id;
      if (alone || !IsGone(error) || cancelled()) return error;
      origin_gone_ = true;
    }
  }
  for (size_t at = current_; at < options_.holders.size(); ++at) {
    const Holder& holder = options_.holders[at];
    if (holder.id == kOriginId) continue;
    const absl::Status answered =
        rpc::Call(*holder.channel, request, response,
                  {.deadline = kShortCall, .give_up = kShortCall, .cancel = options_.cancel});
    if (answered.ok() && is_useful()) return stats_.lister = holder.id;
    if (cancelled()) return answered;
  }
  return error;
}

absl::Status ObjectFetcher::TellOrigin(const google::protobuf::Message& request,
                                       google::protobuf::Message* response, rpc::Cancel* cancel) {
  const bool alone = options_.holders.size() == 1;
  if (origin_gone_) return absl::OkStatus();
  for (const Holder& holder : options_.holders) {
    if (holder.id != kOriginId) continue;
    rpc::CallOptions options{.cancel = cancel};
    if (!alone) options.deadline = options.give_up = kShortCall;
    const absl::Status told = rpc::Call(*holder.channel, request, response, options);
    const bool cancelled = cancel != nullptr && cancel->triggered();
    if (told.ok() || alone || !IsGone(told) || cancelled) return told;
    origin_gone_ = true;
  }
  return absl::OkStatus();
}

void ObjectFetcher::SetWait(const std::string& object, const std::string& holder, size_t objects) {
  MutexLock lock(&mu_);
  wait_ = Wait{ShortId(object), holder, options_.clock->Monotonic(), objects, options_.version};
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
