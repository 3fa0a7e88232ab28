#include "common/weights/grpc_transport.h"

#include <pthread.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/weights/ucx_memory.h"
#include "common/weights/ucx_stage.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

// The deadline of one stream. Callers fetch some tens of objects at once, so that weights of any
// size can be fetched.
constexpr absl::Duration kStreamDeadline = absl::Minutes(1);
// How long a holder may keep a request whose objects it does not have yet.
constexpr absl::Duration kParked = absl::Seconds(30);
// The largest piece that a holder sends, by which the time to wait for it is judged.
constexpr uint64_t kPieceBytes = 256 << 10;

// Ends a stream in which nothing comes for too long, by its cancel token. Owns a thread.
class SilenceGuard {
 public:
  SilenceGuard(rpc::Cancel* end, absl::Duration limit) : end_(end), limit_(limit) {
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
          end_->Trigger();
          return;
        }
        changed_.WaitFor(&mu_, left);
      }
    }
  }

  rpc::Cancel* const end_;
  mutable Mutex mu_;
  CondVar changed_;
  absl::Duration limit_ ABSL_GUARDED_BY(mu_);
  uint64_t messages_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool fired_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Puts the pieces of one request together. The pieces of an object come in order, and no others
// come between them; objects come in any order, and perhaps twice.
class Assembly {
 public:
  explicit Assembly(WantedObjects* wanted) : wanted_(wanted) {}

  // Takes a piece. Returns true if it completes an object: then the caller takes that.
  absl::StatusOr<bool> Add(const weights::v1::FetchHeader& header, const rpc::Frame& frame) {
    const size_t bytes = frame.payload_bytes();
    wanted_->AddReceived(bytes);
    if (header.index() >= wanted_->ids().size()) {
      return absl::DataLossError(absl::StrCat("a piece of object number ", header.index(),
                                              " came, but ", wanted_->ids().size(),
                                              " were asked for"));
    }
    if (!wanted_->is_open(header.index())) return false;  // It came before.

    const std::string& id = wanted_->ids()[header.index()];
    if (header.offset() == 0) {
      SLUICE_RETURN_IF_ERROR(CheckEnded());
      index_ = header.index();
      size_ = header.size();
    }
    if (index_ != header.index() || header.offset() != object_.size() || size_ != header.size())
      return absl::DataLossError(absl::StrCat(
          "the pieces of objects came out of order: one of object ", ShortObjectId(id), " of ",
          header.size(), " bytes at ", header.offset(), " came when ", object_.size(), " of ",
          size_, " bytes of object ", ShortObjectId(wanted_->ids()[index_]), " were there"));
    if (size_ > kMaxObjectBytes || bytes > size_ - object_.size() || bytes == 0) {
      return absl::DataLossError(absl::StrCat("object ", ShortObjectId(id), " of ", size_,
                                              " bytes came with a piece of ", bytes, " at ",
                                              object_.size(), "; the limit is ", kMaxObjectBytes));
    }

    const size_t at = object_.size();
    object_.resize(at + bytes);
    rpc::PayloadReader reader(frame);
    SLUICE_ASSIGN_OR_RETURN(const uint32_t crc, reader.Copy(bytes, object_.data() + at));
    if (crc != header.crc32c())
      return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                   absl::StrCat("the piece of object ", ShortObjectId(id), " at byte ", at,
                                " has a wrong CRC"));
    return object_.size() == size_;
  }

  // Passes the complete object on.
  absl::Status TakeObject() {
    const std::string object = std::exchange(object_, {});
    return wanted_->Take(index_, object);
  }

  // DATA_LOSS: an object has begun and did not end.
  absl::Status CheckEnded() const {
    if (object_.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("object ", ShortObjectId(wanted_->ids()[index_]),
                                            " ended after ", object_.size(), " of ", size_,
                                            " bytes"));
  }

  // Of several places that ask for the object one is closed for each time that it is missing.
  void AddMissing(const std::string& id) {
    for (size_t i = 0; i < wanted_->ids().size(); ++i) {
      if (wanted_->is_open(i) && wanted_->ids()[i] == id) return wanted_->AddMissing(i);
    }
  }

 private:
  WantedObjects* const wanted_;
  // The object that comes in pieces; empty between two objects.
  std::string object_;
  size_t index_ = 0;
  uint64_t size_ = 0;
};

}  // namespace

absl::Status GrpcTransport::Call(const google::protobuf::Message& request,
                                 google::protobuf::Message* response,
                                 const rpc::CallOptions& options) {
  return rpc::Call(*channel_, request, response, options);
}

FetchEnd GrpcTransport::Fetch(const FetchTerms& terms, WantedObjects* wanted) {
  // The guard ends the stream by it, or the caller does, also while there is no connection yet.
  rpc::Cancel end;
  const int64_t callback =
      terms.cancel == nullptr ? 0 : terms.cancel->AddCallback([&end] { end.Trigger(); });
  FetchEnd fetched = FetchUntil(&end, terms, wanted);
  if (terms.cancel != nullptr) terms.cancel->RemoveCallback(callback);
  return fetched;
}

FetchEnd GrpcTransport::TakeFromMemory(const weights::v1::FetchHeader& header,
                                       absl::Duration deadline, rpc::Cancel* end,
                                       WantedObjects* wanted) {
  const auto lied = [](absl::Status why) { return FetchEnd{std::move(why), HolderFault::kLied}; };
  if (ucx_ == nullptr || header.index() >= wanted->ids().size() ||
      header.size() > UcxStage::kMostBytes) {
    return lied(absl::DataLossError(absl::StrCat("a place of object number ", header.index(),
                                                 " of ", header.size(), " bytes came; ",
                                                 wanted->ids().size(), " objects were asked for",
                                                 ucx_ == nullptr ? ", and no places" : "")));
  }
  if (!wanted->is_open(header.index())) return {};  // It came before.

  const absl::StatusOr<absl::string_view> object = ucx_->Read({.worker = header.place().worker(),
                                                               .key = header.place().key(),
                                                               .address = header.place().address(),
                                                               .bytes = header.size()},
                                                              deadline, end);
  if (absl::IsInvalidArgument(object.status())) return lied(object.status());
  if (absl::IsDeadlineExceeded(object.status())) return {object.status(), HolderFault::kSilent};
  if (!object.ok()) return {object.status(), HolderFault::kGone};
  wanted->AddReceived(object->size());
  if (absl::Status taken = wanted->Take(header.index(), *object); !taken.ok())
    return lied(std::move(taken));
  return {};
}

FetchEnd GrpcTransport::FetchUntil(rpc::Cancel* end, const FetchTerms& terms,
                                   WantedObjects* wanted) {
  weights::v1::FetchRequest request;
  *request.mutable_call() = MakeCall(caller_);
  for (const std::string& id : wanted->ids()) request.add_objects()->set_id(id);
  *request.mutable_wait() = rpc::ToProto(kParked);
  *request.mutable_version() = rpc::ToProto(terms.version);
  request.set_by_ucx(ucx_ != nullptr);

  HolderHistory& history = *terms.history;
  const auto limit = [&](uint64_t bytes = kPieceBytes) {
    return terms.patience * history.SilenceLimit(bytes);
  };
  // Until then places hold.
  const absl::Duration deadline = Clock::Real()->Monotonic() + kStreamDeadline;
  Assembly assembly(wanted);
  std::optional<SilenceGuard> guard;
  if (!terms.is_patient) guard.emplace(end, limit());
  rpc::ClientStream stream(*channel_, *weights::v1::FetchRequest::descriptor(), end,
                           kStreamDeadline);
  stream.Write(request);
  stream.WritesDone();

  rpc::Frame frame;
  absl::Duration last = terms.clock->Monotonic();
  while (wanted->left() > 0 && stream.ReadFrame(&frame)) {
    if (guard) guard->Restart(limit());
    weights::v1::FetchHeader header;
    if (absl::Status parsed = frame.ParseHeader(&header); !parsed.ok())
      return {absl::DataLossError(parsed.message()), HolderFault::kLied};
    const absl::Duration waited = rpc::FromProto(header.waited());

    for (const std::string& id : header.missing()) assembly.AddMissing(id);
    if (header.missing_size() > 0) continue;
    if (header.size() == 0) {  // A beat: the holder is alive, and waits itself.
      if (terms.is_patient || waited < history.limits().starved) continue;
      return {absl::UnavailableError(absl::StrCat(terms.name, " has waited ",
                                                  absl::FormatDuration(waited), " for object ",
                                                  ShortObjectId(wanted->first_open()), " itself")),
              HolderFault::kStarved};
    }

    uint64_t bytes = frame.payload_bytes();
    bool done = false;
    if (header.has_place()) {
      bytes = header.size();
      if (guard) guard->Restart(limit(bytes));
      FetchEnd taken = TakeFromMemory(header, deadline, end, wanted);
      if (guard && guard->fired()) break;
      if (!taken.status.ok()) return taken;
      if (guard) guard->Restart(limit());
    } else {
      const absl::StatusOr<bool> added = assembly.Add(header, frame);
      if (!added.ok()) return {added.status(), HolderFault::kLied};
      done = *added;
    }
    const absl::Duration now = terms.clock->Monotonic();
    history.AddPiece(terms.key, bytes, std::max(absl::ZeroDuration(), now - last - waited));
    last = now;
    if (done) {
      if (absl::Status taken = assembly.TakeObject(); !taken.ok())
        return {std::move(taken), HolderFault::kLied};
    }

    // There is no other trainer, however slow it is.
    if (wanted->left() > 0 && !terms.is_patient && terms.key != kOriginId &&
        history.IsSlow(terms.key)) {
      return {absl::UnavailableError(
                  absl::StrCat(terms.name, " sends at less than half of the usual rate")),
              HolderFault::kSlow};
    }
  }

  if (wanted->left() == 0) return {wanted->CheckMissing(terms.name), std::nullopt};
  absl::Status status = stream.Finish();
  if (guard && guard->fired()) {
    return {absl::DeadlineExceededError(
                absl::StrCat(terms.name, " sent nothing for ", absl::FormatDuration(limit()))),
            HolderFault::kSilent};
  }
  if (status.ok()) {
    // An end in the middle of an object is no end that an honest holder makes.
    if (absl::Status ended = assembly.CheckEnded(); !ended.ok())
      return {std::move(ended), HolderFault::kLied};
    status =
        absl::UnavailableError(absl::StrCat(terms.name, " ended the stream with ", wanted->left(),
                                            " of ", wanted->ids().size(), " objects missing"));
  }
  return {std::move(status), HolderFault::kGone};
}

}  // namespace sluice
