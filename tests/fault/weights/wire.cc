#include "tests/fault/weights/wire.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/id.h"
#include "common/rpc/cancel.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/weights/convert.h"
#include "common/weights/publisher.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice::fault {
namespace {

// As GrpcTransport has them.
constexpr absl::Duration kStreamDeadline = absl::Minutes(1), kParked = absl::Seconds(30);
constexpr absl::Duration kBeat = absl::Milliseconds(250);
constexpr uint64_t kPieceBytes = 256 << 10;
// How long a call without a limit of its own is repeated.
constexpr absl::Duration kCallLimit = absl::Seconds(10);

enum class StreamFault {
  kNone,
  kDies,       // The stream breaks.
  kHangs,      // Nothing more comes.
  kEndsEarly,  // With OK, and objects missing.
  kFlips,      // One bit of an object.
  kTruncates,
  kSwaps,   // Sends another object in the place of one.
  kDenies,  // Says that it does not have an object.
  kSlow,
  kReorders,
  kRepeats,
};
constexpr const char* kStreamFaultNames[] = {
    "",          "stream breaks", "holder hangs", "stream ends early", "bit flipped on the way",
    "truncated", "other object",  "denied",       "holder is slow",    "reordered",
    "repeated"};

// Any version that was published, with its weights.
const std::pair<const PolicyVersion, TensorSet>& AnyPublished(World* world) {
  const auto& published = world->model.published;
  return *std::next(published.begin(),
                    static_cast<std::ptrdiff_t>(world->random.Below(published.size())));
}

// Makes a list of edges wrong in one place.
void FalsifyList(World* world, weights::v1::ListResponse* list) {
  world->Inject("list is a lie");
  const auto nodes = static_cast<uint64_t>(list->nodes_size());
  weights::v1::VersionNode& node =
      *list->mutable_nodes(static_cast<int>(world->random.Below(nodes)));
  const auto& [version, tensors] = AnyPublished(world);
  switch (world->random.Below(4)) {
    case 0: node.set_state(FingerprintOf(tensors).bytes()); break;
    case 1:
      node.set_kind(weights::v1::Manifest::KIND_DELTA);
      node.set_base(FingerprintOf(tensors).bytes());
      break;
    case 2: *node.mutable_version() = rpc::ToProto(version); break;
    default: list->clear_nodes(); break;
  }
}

}  // namespace

void Reader::AwaitRunning() const {
  while (self->stopped && !fiber->finishing())
    fiber->Park(world->timeline.Monotonic() + absl::Milliseconds(100));
}

// One Fetch.
class Wire::Stream {
 public:
  Stream(const Wire& wire, const FetchTerms& terms, WantedObjects* wanted)
      : reader_(wire.reader_),
        world_(*wire.reader_.world),
        caps_(wire.caps_),
        holder_(world_.Find(wire.holder_)),
        terms_(terms),
        wanted_(*wanted),
        order_(wanted->ids().size()) {
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    if (holder_ != nullptr) life_ = holder_->life();
    DrawFault();
  }

  FetchEnd Run() {
    Pass(absl::Milliseconds(1));  // A round trip.
    while (wanted_.left() > 0) {
      reader_.AwaitRunning();
      if (terms_.cancel->triggered() || reader_.fiber->finishing())
        return {absl::CancelledError("cancelled"), std::nullopt};
      if (now() - begun_ >= kStreamDeadline)
        return {absl::DeadlineExceededError("the stream took too long"), HolderFault::kGone};
      if (holder_ == nullptr || !holder_->alive() || holder_->life() != life_ ||
          Shows(StreamFault::kDies))
        return {absl::UnavailableError("the connection is gone"), HolderFault::kGone};
      if (Shows(StreamFault::kEndsEarly))
        return {absl::UnavailableError("the stream has ended"), HolderFault::kGone};
      if (Shows(StreamFault::kHangs) || !world_.Reaches(*reader_.self, *holder_)) {
        if (!terms_.is_patient && now() - heard_ >= silence_limit())
          return {absl::DeadlineExceededError("it sent nothing"), HolderFault::kSilent};
        Pass(kBeat);
        continue;
      }
      if (std::optional<FetchEnd> end = TakeNext(); end.has_value()) return *std::move(end);
    }
    return {wanted_.CheckMissing(terms_.name), std::nullopt};
  }

 private:
  absl::Duration now() const { return world_.timeline.Monotonic(); }
  absl::Duration silence_limit() const {
    return terms_.patience * terms_.history->SilenceLimit(kPieceBytes);
  }
  bool Shows(StreamFault fault) const { return fault_ == fault && taken_ >= after_; }
  void Pass(absl::Duration time) { reader_.fiber->Park(now() + time); }

  void DrawFault() {
    const bool has_fault =
        !world_.healed && world_.OneOf(holder_ != nullptr && holder_->lies ? 2 : 12);
    if (!has_fault) return;
    fault_ = static_cast<StreamFault>(1 + world_.random.Below(std::size(kStreamFaultNames) - 1));
    world_.Inject(kStreamFaultNames[static_cast<size_t>(fault_)]);
    after_ = world_.random.Below(order_.size());
    if (fault_ != StreamFault::kReorders) return;
    for (size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[world_.random.Below(i)]);
  }

  // Takes an object that the holder has, or hears of one that it does not have, or waits.
  std::optional<FetchEnd> TakeNext() {
    const std::shared_ptr<WeightSource> source = holder_->source();
    for (const size_t i : order_) {
      if (!wanted_.is_open(i)) continue;
      const std::string& id = wanted_.ids()[i];
      const WeightSource::Lookup found = source->Find(id, terms_.version);
      const bool waits = found.object == nullptr && found.is_coming && now() - begun_ < kParked;
      if (waits) continue;
      heard_ = now();
      if (found.object == nullptr || Shows(StreamFault::kDenies)) {
        fault_ = found.object == nullptr ? fault_ : StreamFault::kNone;
        wanted_.AddMissing(i);
        return std::nullopt;
      }
      return Take(i, *found.object);
    }

    // The holder waits itself, and says so.
    heard_ = now();
    parked_since_ = std::min(parked_since_, now());
    if (!terms_.is_patient && now() - parked_since_ >= terms_.history->limits().starved)
      return FetchEnd{absl::UnavailableError("it waits itself"), HolderFault::kStarved};
    source->CallWhenChanged([weak = reader_.fiber->weak_from_this()] {
      if (const auto fiber = weak.lock()) fiber->Wake();
    });
    Pass(kBeat);
    return std::nullopt;
  }

  std::optional<FetchEnd> Take(size_t i, std::string bytes) {
    const bool slow = fault_ == StreamFault::kSlow;
    const absl::Duration took =
        world_.Between(absl::Microseconds(200), absl::Milliseconds(3)) * (slow ? 200 : 1);
    Pass(took);
    reader_.AwaitRunning();
    // The process may have died meanwhile.
    if (terms_.cancel->triggered() || !holder_->alive() || holder_->life() != life_)
      return std::nullopt;

    if (Shows(StreamFault::kFlips)) bytes[world_.random.Below(bytes.size())] ^= 1;
    if (Shows(StreamFault::kTruncates)) bytes.resize(world_.random.Below(bytes.size()));
    if (Shows(StreamFault::kSwaps)) bytes = std::string(bytes.size(), 'x');
    if (fault_ == StreamFault::kRepeats) wanted_.AddReceived(bytes.size());
    wanted_.AddReceived(bytes.size());
    terms_.history->AddPiece(terms_.key, bytes.size(), took);
    heard_ = now();
    parked_since_ = absl::InfiniteDuration();
    const absl::Status taken = wanted_.Take(i, bytes);
    if (!taken.ok()) return FetchEnd{taken, HolderFault::kLied};
    if (!reader_.taken.insert(wanted_.ids()[i]).second && !world_.relays_damaged)
      world_.Wrong(absl::StrCat(reader_.caller, " took object ", ShortObjectId(wanted_.ids()[i]),
                                " twice in one download"));
    ++taken_;
    if (wanted_.left() > 0 && !terms_.is_patient && terms_.key != kOriginId &&
        terms_.history->IsSlow(terms_.key))
      return FetchEnd{absl::UnavailableError("it is slow"), HolderFault::kSlow};
    return std::nullopt;
  }

  Reader& reader_;
  World& world_;
  const TransportCaps& caps_;
  Endpoint* const holder_;
  int life_ = 0;
  const FetchTerms& terms_;
  WantedObjects& wanted_;
  std::vector<size_t> order_;
  StreamFault fault_ = StreamFault::kNone;
  size_t after_ = 0, taken_ = 0;  // The fault shows after so many objects.
  const absl::Duration begun_ = world_.timeline.Monotonic();
  absl::Duration heard_ = begun_, parked_since_ = absl::InfiniteDuration();
};

FetchEnd Wire::Fetch(const FetchTerms& terms, WantedObjects* wanted) {
  for (const std::string& id : wanted->ids()) {
    if (reader_.taken.contains(id) && !reader_.world->relays_damaged)
      reader_.world->Wrong(absl::StrCat(reader_.caller, " asks for object ", ShortObjectId(id),
                                        " again, which it has"));
  }
  FetchEnd end = Stream(*this, terms, wanted).Run();
  if (end.fault.has_value())
    reader_.world->Count(absl::StrCat("holders left: ", HolderFaultName(*end.fault)));
  return end;
}

absl::Status Wire::Call(const google::protobuf::Message& request,
                        google::protobuf::Message* response, const rpc::CallOptions& options) {
  World& world = *reader_.world;
  const bool has_limit = options.give_up > absl::ZeroDuration();
  const absl::Duration until =
      world.timeline.Monotonic() + (has_limit ? options.give_up : kCallLimit);
  const bool fails = !world.healed && world.OneOf(15);
  if (fails) world.Inject("call fails");
  while (true) {
    reader_.fiber->Park(world.timeline.Monotonic() + absl::Milliseconds(1));
    reader_.AwaitRunning();
    if (reader_.fiber->finishing() || (options.cancel != nullptr && options.cancel->triggered()))
      return absl::CancelledError("cancelled");
    Endpoint* const holder = world.Find(holder_);
    if (holder != nullptr && !fails && world.Reaches(*reader_.self, *holder))
      return Answer(*holder, request, response);
    if (world.timeline.Monotonic() >= until) break;
    reader_.fiber->Park(std::min(until, world.timeline.Monotonic() + kBeat));
  }
  return absl::UnavailableError("it does not answer");
}

absl::Status Wire::Answer(Endpoint& holder, const google::protobuf::Message& request,
                          google::protobuf::Message* response) {
  if (auto* const list = dynamic_cast<weights::v1::ListResponse*>(response); list != nullptr) {
    list->Clear();
    for (const WeightEdge& edge : holder.source()->edges()) *list->add_nodes() = ToProto(edge);
    if (holder.lies && !reader_.world->healed && list->nodes_size() > 0)
      FalsifyList(reader_.world, list);
    return absl::OkStatus();
  }
  const auto* const lease = dynamic_cast<const weights::v1::LeaseRequest*>(&request);
  if (lease == nullptr || holder.publisher() == nullptr)
    return absl::UnimplementedError("it takes no such call");
  holder.publisher()->Lease(reader_.caller, {lease->manifests().begin(), lease->manifests().end()},
                            rpc::FromProto(lease->ttl()));
  return absl::OkStatus();
}

PublishedVersion MakeUpVersion(World* world, const PublishedVersion& latest) {
  PublishedVersion lie = latest;
  lie.version.number += 1 + static_cast<int64_t>(world->random.Below(5));
  if (world->OneOf(3)) lie.version.incarnation += 1;
  switch (world->random.Below(3)) {
    case 0: break;  // Manifest and weights are of an older version.
    case 1:
      lie.manifest = std::string(32, 'm');
      lie.state = FingerprintOf(AnyPublished(world).second);
      break;
    default: lie.state = *Fingerprint::FromBytes(std::string(16, 's')); break;
  }
  return lie;
}

}  // namespace sluice::fault
