#include "common/weights/fetcher.h"

#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/weights/chunk.h"
#include "common/weights/delta_chunk.h"
#include "common/weights/grpc_transport.h"
#include "common/weights/relay.h"
#include "common/weights/weight_delta.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxManifest = 64 << 20;
// What is fetched in one stream, which has a deadline. Between two streams nothing comes, so they
// must not be short.
constexpr uint64_t kStreamBytes = 64 << 20;
constexpr size_t kStreamObjects = 1000;
// Renewed between two streams.
constexpr absl::Duration kPathLease = absl::Minutes(2);

std::string ShortName(const std::string& id) { return ToHex(id).substr(0, 16); }

absl::StatusOr<weights::v1::Manifest> ParseManifest(PolicyVersion version,
                                                    const std::string& bytes) {
  weights::v1::Manifest manifest;
  if (bytes.size() <= kMaxManifest && manifest.ParseFromString(bytes)) return manifest;
  return absl::DataLossError(
      absl::StrCat("the manifest of version ", version.str(), " has ", bytes.size(),
                   " bytes and cannot be parsed; the limit is ", kMaxManifest, " bytes"));
}

// Reads the fingerprints of the tensors after a delta. Those before it are in no manifest of it, so
// of a delta that is taken backward none are known.
absl::Status ReadTensorStates(const weights::v1::Manifest& manifest, bool backward,
                              std::vector<Fingerprint>* states) {
  states->clear();
  const absl::string_view bytes = manifest.tensor_states();
  for (size_t at = 0; at < bytes.size() && !backward; at += 16) {
    SLUICE_ASSIGN_OR_RETURN(const Fingerprint state, Fingerprint::FromBytes(bytes.substr(at, 16)));
    states->push_back(state);
  }
  return absl::OkStatus();
}

// The chunks that a manifest names.
struct Chunks {
  std::vector<std::string> ids;
  std::vector<uint64_t> bytes;  // Of each, as sent.
  // Each stream fetches those of ids[ends[i - 1]..ends[i]).
  std::vector<size_t> ends;
};

absl::StatusOr<Chunks> ChunksOf(const weights::v1::Manifest& manifest, uint32_t codec) {
  Chunks chunks;
  uint64_t bytes = 0;
  for (const weights::v1::Chunk& chunk : manifest.chunks()) {
    if (chunk.codec() != codec) {
      return absl::UnimplementedError(
          absl::StrCat("a chunk of kind ", weights::v1::Manifest::Kind_Name(manifest.kind()),
                       " has codec ", chunk.codec(), "; this build reads ", codec));
    }
    if (chunk.sha256().size() != 32 || chunk.wire_bytes() > kMaxChunkBytes + 4096)
      return absl::DataLossError("the manifest names a chunk with a malformed id or a wrong size");

    const size_t first = chunks.ends.empty() ? 0 : chunks.ends.back();
    const size_t objects = chunks.ids.size() - first;
    if (objects > 0 && (bytes + chunk.wire_bytes() > kStreamBytes || objects == kStreamObjects)) {
      chunks.ends.push_back(chunks.ids.size());
      bytes = 0;
    }
    chunks.ids.push_back(chunk.sha256());
    chunks.bytes.push_back(chunk.wire_bytes());
    bytes += chunk.wire_bytes();
  }
  if (!chunks.ids.empty()) chunks.ends.push_back(chunks.ids.size());
  return chunks;
}

// Keeps the manifests of a path from being freed while it is fetched. The first call goes out at
// once and is not waited for: the newest versions are kept anyway, and the answer may come late.
class PathLease {
 public:
  PathLease(ObjectFetcher* objects, weights::v1::LeaseRequest request)
      : objects_(objects), request_(std::move(request)) {
    first_ = std::async(objects_->tell(), [this] { return Send(&cancel_); });
    if (objects_->tell() == std::launch::deferred) first_.wait();
  }
  ~PathLease() { cancel_.Trigger(); }  // The future's destructor then waits for the call.

  absl::Status Renew() {
    if (first_.valid()) SLUICE_RETURN_IF_ERROR(first_.get());
    return Send(objects_->cancel());
  }

 private:
  absl::Status Send(rpc::Cancel* cancel) {
    weights::v1::LeaseResponse response;
    return objects_->TellOrigin(request_, &response, cancel);
  }

  ObjectFetcher* const objects_;
  const weights::v1::LeaseRequest request_;
  rpc::Cancel cancel_;
  std::future<absl::Status> first_;
};

}  // namespace

WeightFetcher::WeightFetcher(Caller caller, absl::Span<const TensorSpec> layout)
    : caller_(std::move(caller)),
      specs_(layout.begin(), layout.end()),
      layout_id_(LayoutId(layout)) {}

absl::StatusOr<StagedWeights> WeightFetcher::Fetch(const rpc::Channel& channel,
                                                   const PublishedVersion& version,
                                                   const std::optional<Fingerprint>& held,
                                                   rpc::Cancel* cancel) const {
  HolderHistory history;
  ObjectFetcher objects(
      {.caller = caller_,
       .version = version.version,
       .holders = {{.id = std::string(kOriginId),
                    .transport = std::make_shared<GrpcTransport>(
                        std::shared_ptr<const rpc::Channel>(std::shared_ptr<void>(), &channel),
                        caller_)}},
       .history = &history,
       .cancel = cancel});
  return Fetch(&objects, version, held);
}

absl::StatusOr<StagedWeights> WeightFetcher::Fetch(ObjectFetcher* objects,
                                                   const PublishedVersion& version,
                                                   const std::optional<Fingerprint>& held) const {
  WeightRelay* const relay = objects->relay();
  if (version.state == held) {  // A relabel: only the version number changes.
    if (relay != nullptr) relay->Reached(version.version);
    return StagedWeights{
        .version = version.version, .state = version.state, .manifest = version.manifest};
  }

  SLUICE_ASSIGN_OR_RETURN(const Route route, FindRoute(objects, version, held));
  if (relay != nullptr) {
    std::vector<WeightEdge> edges;
    for (const WeightStep& step : route.path) edges.push_back(step.edge);
    relay->Begin(version, std::move(edges));
    if (route.manifest != nullptr) relay->Add(version.manifest, route.manifest);
  }
  absl::StatusOr<StagedWeights> staged = Walk(objects, version, held, route);
  if (relay != nullptr) relay->End(staged.ok());
  return staged;
}

absl::StatusOr<WeightFetcher::Route> WeightFetcher::FindRoute(
    ObjectFetcher* objects, const PublishedVersion& version,
    const std::optional<Fingerprint>& from) const {
  // The manifest that was announced leads to the version, and most often from what is held. The
  // trainer's answer to a List would come late, behind the chunks that its link is full of. What
  // only a relay has announced may be made up: its manifest must say the same, and a list says
  // whose word it is.
  Route route{.lister = std::string(kOriginId)};
  if (objects->relay() != nullptr || objects->hearsay()) {
    const absl::Status fetched = objects->Fetch({version.manifest}, [&](absl::string_view object) {
      route.manifest = std::make_shared<const std::string>(object);
      return absl::OkStatus();
    });
    if (objects->hearsay()) SLUICE_RETURN_IF_ERROR(fetched);
    const absl::StatusOr<weights::v1::Manifest> manifest =
        fetched.ok() ? ParseManifest(version.version, *route.manifest) : fetched;
    if (objects->hearsay()) SLUICE_RETURN_IF_ERROR(manifest.status());
    if (manifest.ok()) {
      WeightEdge edge{.version = version, .manifest = version.manifest};
      for (const weights::v1::Chunk& chunk : manifest->chunks()) edge.bytes += chunk.wire_bytes();
      edge.created = rpc::FromProto(manifest->created());
      if (manifest->kind() == weights::v1::Manifest::KIND_DELTA) {
        SLUICE_ASSIGN_OR_RETURN(edge.base, Fingerprint::FromBytes(manifest->base()));
      }
      if (objects->hearsay()) {
        SLUICE_RETURN_IF_ERROR(CheckManifest(*manifest, edge));
      } else if (!edge.base.has_value() || edge.base == from) {
        route.path = {{edge}};
        return route;
      }
    }
  }

  weights::v1::ListRequest request;
  *request.mutable_call() = MakeCall(caller_);
  weights::v1::ListResponse list;
  const auto find_path = [&]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<WeightEdge> edges, ReadEdges(list));
    route.path = FindWeightPath(edges, from, version.state);
    if (!route.path.empty()) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("the trainer no longer has version ", version.version.str()));
  };
  SLUICE_ASSIGN_OR_RETURN(route.lister,
                          objects->AskForList(request, &list, [&] { return find_path().ok(); }));
  if (route.lister == kOriginId) SLUICE_RETURN_IF_ERROR(find_path());
  return route;
}

absl::StatusOr<StagedWeights> WeightFetcher::Walk(ObjectFetcher* objects,
                                                  const PublishedVersion& version,
                                                  const std::optional<Fingerprint>& held,
                                                  const Route& route) const {
  StagedWeights staged{
      .version = version.version, .state = version.state, .manifest = version.manifest};
  const std::vector<WeightStep>& path = route.path;
  TensorSet tensors;
  WeightDelta delta;
  Result result{};
  if (path.front().edge.base.has_value()) {
    delta.base = result.state = *held;
    result.delta = &delta;
  } else {
    SLUICE_ASSIGN_OR_RETURN(tensors, TensorSet::Create(specs_));
    result.tensors = &tensors;
  }
  std::vector<std::string> manifests = {version.manifest};
  for (const WeightStep& step : path) manifests.push_back(step.edge.manifest);
  PathLease lease(objects, MakeLease(manifests, kPathLease));
  absl::Status walked;
  for (const WeightStep& step : path) {
    const bool is_known = step.edge.manifest == version.manifest;
    walked = TakeStep(
        objects, step, is_known ? route.manifest : nullptr, [&] { return lease.Renew(); }, &result);
    if (!walked.ok()) break;
  }
  if (absl::IsDataLoss(walked) && result.delta != nullptr && route.lister == kOriginId &&
      !objects->holders_failed()) {
    return Error(absl::StatusCode::kDataLoss, "WRONG_PATH", walked.message());
  }
  SLUICE_RETURN_IF_ERROR(walked);
  staged.bytes = result.bytes;

  // Of whole weights only the SHA-256 of the chunks was checked so far. The trainer announces and
  // lists what it has published, but a relay may say what it likes. The engine checks what a delta
  // leads to.
  if (result.tensors != nullptr && (route.lister != kOriginId || objects->relay() != nullptr))
    result.state = FingerprintOf(tensors);
  if (!(result.state == version.state)) {
    absl::Status wrong = absl::DataLossError(absl::StrCat(
        "version ", version.version.str(), " was announced with ", "the fingerprint ",
        version.state.hex(), ", but ", path.size(), " manifests lead to ", result.state.hex()));
    if (route.lister != kOriginId) objects->Distrust(route.lister, wrong);
    return wrong;
  }
  if (result.delta != nullptr) {
    staged.delta = std::make_shared<const WeightDelta>(std::move(delta));
  } else {
    staged.tensors = std::make_shared<const TensorSet>(std::move(tensors));
  }
  return staged;
}

absl::StatusOr<std::vector<WeightEdge>> WeightFetcher::ReadEdges(
    const weights::v1::ListResponse& list) {
  std::vector<WeightEdge> edges;
  for (const weights::v1::VersionNode& node : list.nodes()) {
    WeightEdge& edge = edges.emplace_back(WeightEdge{
        .version = {.version = rpc::FromProto(node.version()), .manifest = node.manifest()},
        .manifest = node.manifest(),
        .bytes = node.bytes(),
        .created = rpc::FromProto(node.created())});
    SLUICE_ASSIGN_OR_RETURN(edge.version.state, Fingerprint::FromBytes(node.state()));
    if (node.kind() == weights::v1::Manifest::KIND_DELTA) {
      SLUICE_ASSIGN_OR_RETURN(edge.base, Fingerprint::FromBytes(node.base()));
    } else if (node.kind() != weights::v1::Manifest::KIND_FULL) {
      edges.pop_back();  // Of a later build.
    }
  }
  return edges;
}

// Takes the result, which has the fingerprint result->state, along one edge.
absl::Status WeightFetcher::TakeStep(ObjectFetcher* objects, const WeightStep& step,
                                     std::shared_ptr<const std::string> known_manifest,
                                     const std::function<absl::Status()>& renew,
                                     Result* result) const {
  // Download the manifest, which lists the chunks.
  const WeightEdge& edge = step.edge;
  if (known_manifest == nullptr) {
    SLUICE_RETURN_IF_ERROR(objects->Fetch({edge.manifest}, [&](absl::string_view object) {
      known_manifest = std::make_shared<const std::string>(object);
      return absl::OkStatus();
    }));
  }
  SLUICE_ASSIGN_OR_RETURN(const weights::v1::Manifest manifest,
                          ParseManifest(edge.version.version, *known_manifest));
  SLUICE_RETURN_IF_ERROR(CheckManifest(manifest, edge));

  const bool whole = !edge.base.has_value();
  SLUICE_ASSIGN_OR_RETURN(Chunks chunks, ChunksOf(manifest, whole ? 0 : 1));
  if (objects->relay() != nullptr) objects->relay()->Expect(chunks.ids);
  WholeVersion part{edge.manifest, std::move(chunks.ids), std::move(chunks.bytes)};
  const int sign = step.backward ? -1 : +1;
  TensorSet* const tensors = result->tensors;
  std::vector<DeltaTarget> targets;
  if (tensors != nullptr) targets = WholeTensors(tensors);
  std::vector<Fingerprint> sums(specs_.size());
  uint64_t written = 0;
  const auto take = [&](absl::string_view chunk) -> absl::Status {
    result->bytes += chunk.size();
    if (whole) return DecodeFullChunk(chunk, tensors, &written);
    SLUICE_ASSIGN_OR_RETURN(DeltaChunk delta, DeltaChunk::Parse(std::string(chunk), specs_));
    if (tensors != nullptr) {
      delta.Apply(sign, targets, absl::MakeSpan(sums));
    } else {
      result->delta->chunks.push_back({std::move(delta), sign});
    }
    return absl::OkStatus();
  };
  size_t first = 0;
  for (const size_t end : chunks.ends) {
    if (first > 0) SLUICE_RETURN_IF_ERROR(renew());
    part.end = end;
    SLUICE_RETURN_IF_ERROR(objects->Fetch(absl::MakeConstSpan(part.ids).subspan(first, end - first),
                                          take, whole ? &part : nullptr));
    first = end;
  }
  if (result->delta != nullptr) {
    // The engine that applies the delta finds out whether it leads there.
    result->state = step.backward ? *edge.base : edge.version.state;
    return ReadTensorStates(manifest, step.backward, &result->delta->tensor_states);
  }
  if (!whole) {
    result->state += Sum(sums);
    return absl::OkStatus();
  }
  uint64_t expected = 0;
  for (size_t i = 0; i < tensors->size(); ++i) expected += static_cast<uint64_t>(tensors->bytes(i));
  if (written != expected) {
    return absl::DataLossError(absl::StrCat("the chunks of version ", edge.version.version.str(),
                                            " hold ", written, " bytes; wanted: ", expected));
  }
  // The engine computes the fingerprint of what it packs; here the SHA-256 of the chunks stand for
  // it.
  result->state = edge.version.state;
  return absl::OkStatus();
}

// Checks a downloaded manifest against the trainer's list.
absl::Status WeightFetcher::CheckManifest(const weights::v1::Manifest& manifest,
                                          const WeightEdge& edge) const {
  const PolicyVersion version = edge.version.version;
  if (manifest.job() != caller_.job) {
    return absl::DataLossError(absl::StrCat("the manifest of version ", version.str(),
                                            " belongs to job ", manifest.job(), ", not to ",
                                            caller_.job));
  }
  const auto kind =
      edge.base.has_value() ? weights::v1::Manifest::KIND_DELTA : weights::v1::Manifest::KIND_FULL;
  if (manifest.incarnation() != version.incarnation || manifest.version() != version.number ||
      manifest.kind() != kind || manifest.state() != edge.version.state.bytes() ||
      manifest.base() != (edge.base.has_value() ? edge.base->bytes() : "")) {
    // A state has 16 bytes, but that of a wrong manifest may be longer.
    return absl::DataLossError(absl::StrCat(
        "the manifest of version ", manifest.incarnation(), ":", manifest.version(), " with state ",
        ToHex(manifest.state().substr(0, 16)), " is listed as version ", version.str(),
        " with state ", ToHex(edge.version.state.bytes())));
  }
  if (manifest.layout_id() != layout_id_) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", version.str(), " has the layout ", ShortName(manifest.layout_id()),
                     ", but this engine's model has ", ShortName(layout_id_),
                     ": trainer and rollout were given different models"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PublishedVersion>> WeightFetcher::List(
    const rpc::Channel& channel) const {
  weights::v1::ListRequest request;
  *request.mutable_call() = MakeCall(caller_);
  weights::v1::ListResponse list;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &list));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<WeightEdge> edges, ReadEdges(list));
  std::vector<PublishedVersion> versions;
  for (const WeightEdge& edge : edges) {
    // A version that is there as a whole and as a delta is named by its delta, which comes last.
    if (!versions.empty() && versions.back().version == edge.version.version) versions.pop_back();
    versions.push_back(edge.version);
  }
  return versions;
}

absl::Status WeightFetcher::Lease(const rpc::Channel& channel, const PublishedVersion& version,
                                  absl::Duration ttl) const {
  weights::v1::LeaseResponse response;
  return rpc::Call(channel, MakeLease({version.manifest}, ttl), &response);
}

weights::v1::LeaseRequest WeightFetcher::MakeLease(absl::Span<const std::string> manifests,
                                                   absl::Duration ttl) const {
  weights::v1::LeaseRequest request;
  *request.mutable_call() = MakeCall(caller_);
  request.mutable_manifests()->Add(manifests.begin(), manifests.end());
  *request.mutable_ttl() = rpc::ToProto(ttl);
  return request;
}

}  // namespace sluice
