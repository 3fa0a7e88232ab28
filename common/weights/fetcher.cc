#include "common/weights/fetcher.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/weights/chunk.h"
#include "common/weights/delta_chunk.h"
#include "common/weights/weight_delta.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxManifest = 64 << 20;
// An object has about 1 MiB. The deadline is for one stream of 64 objects, so that weights of any
// size can be fetched.
constexpr size_t kObjectsPerStream = 64;
constexpr absl::Duration kStreamDeadline = absl::Minutes(1);
// Renewed between two streams.
constexpr absl::Duration kPathLease = absl::Minutes(2);

std::string ShortName(const std::string& id) { return ToHex(id).substr(0, 16); }

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
absl::StatusOr<std::vector<std::string>> ChunksOf(const weights::v1::Manifest& manifest,
                                                  uint32_t codec) {
  std::vector<std::string> chunks;
  for (const weights::v1::Chunk& chunk : manifest.chunks()) {
    if (chunk.codec() != codec) {
      return absl::UnimplementedError(
          absl::StrCat("a chunk of kind ", weights::v1::Manifest::Kind_Name(manifest.kind()),
                       " has codec ", chunk.codec(), "; this build reads ", codec));
    }
    if (chunk.sha256().size() != 32 || chunk.wire_bytes() > kMaxChunkBytes + 4096)
      return absl::DataLossError("the manifest names a chunk with a malformed id or a wrong size");
    chunks.push_back(chunk.sha256());
  }
  return chunks;
}

}  // namespace

WeightFetcher::WeightFetcher(Caller caller, absl::Span<const TensorSpec> layout)
    : caller_(std::move(caller)),
      specs_(layout.begin(), layout.end()),
      layout_id_(LayoutId(layout)) {}

common::v1::Call WeightFetcher::MakeCall() const {
  common::v1::Call call;
  call.mutable_job()->set_job(caller_.job);
  call.mutable_job()->set_worker(caller_.worker);
  call.mutable_job()->set_incarnation(caller_.incarnation);
  return call;
}

absl::StatusOr<StagedWeights> WeightFetcher::Fetch(const rpc::Channel& channel,
                                                   const PublishedVersion& version,
                                                   const std::optional<Fingerprint>& held,
                                                   rpc::Cancel* cancel) const {
  StagedWeights staged{
      .version = version.version, .state = version.state, .manifest = version.manifest};
  if (staged.state == held) return staged;  // A relabel: only the version number changes.

  SLUICE_ASSIGN_OR_RETURN(const std::vector<Edge> edges, ListEdges(channel, cancel));
  const std::vector<Step> path = FindPath(edges, held, version.state);
  if (path.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the trainer no longer has version ", version.version.str()));
  }

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
  for (const Step& step : path) manifests.push_back(step.edge.manifest);
  const auto renew = [&] { return LeaseManifests(channel, manifests, kPathLease, cancel); };
  SLUICE_RETURN_IF_ERROR(renew());
  for (const Step& step : path)
    SLUICE_RETURN_IF_ERROR(TakeStep(channel, step, renew, cancel, &result));
  staged.bytes = result.bytes;
  if (!(result.state == version.state)) {
    return absl::DataLossError(absl::StrCat(
        "version ", version.version.str(), " was announced with ", "the fingerprint ",
        version.state.hex(), ", but ", path.size(), " manifests lead to ", result.state.hex()));
  }
  if (result.delta != nullptr) {
    staged.delta = std::make_shared<const WeightDelta>(std::move(delta));
  } else {
    staged.tensors = std::make_shared<const TensorSet>(std::move(tensors));
  }
  return staged;
}

absl::StatusOr<std::vector<WeightFetcher::Edge>> WeightFetcher::ListEdges(
    const rpc::Channel& channel, rpc::Cancel* cancel) const {
  weights::v1::ListRequest request;
  *request.mutable_call() = MakeCall();
  weights::v1::ListResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response, {.cancel = cancel}));
  std::vector<Edge> edges;
  for (const weights::v1::VersionNode& node : response.nodes()) {
    Edge& edge = edges.emplace_back(Edge{.version = rpc::FromProto(node.version()),
                                         .manifest = node.manifest(),
                                         .bytes = node.bytes()});
    SLUICE_ASSIGN_OR_RETURN(edge.state, Fingerprint::FromBytes(node.state()));
    if (node.kind() == weights::v1::Manifest::KIND_DELTA) {
      SLUICE_ASSIGN_OR_RETURN(edge.base, Fingerprint::FromBytes(node.base()));
    } else if (node.kind() != weights::v1::Manifest::KIND_FULL) {
      edges.pop_back();  // Of a later build.
    }
  }
  return edges;
}

// Returns the path to `target` with the fewest bytes, from the state `held`, if there is one, or
// from nothing (Dijkstra). It is empty if there is none.
std::vector<WeightFetcher::Step> WeightFetcher::FindPath(absl::Span<const Edge> edges,
                                                         const std::optional<Fingerprint>& held,
                                                         const Fingerprint& target) {
  const std::string nothing;               // States have 16 bytes.
  std::multimap<std::string, Step> steps;  // By the state where they begin.
  for (const Edge& edge : edges) {
    steps.emplace(edge.base.has_value() ? edge.base->bytes() : nothing, Step{edge});
    if (edge.base.has_value()) steps.emplace(edge.state.bytes(), Step{edge, /*backward=*/true});
  }
  const auto end_of = [](const Step& step) {
    return (step.backward ? *step.edge.base : step.edge.state).bytes();
  };

  struct Found {
    uint64_t bytes = 0;
    const Step* last = nullptr;  // Null where paths begin.
    std::string before;
    bool done = false;
  };
  std::map<std::string, Found> found;
  std::set<std::pair<uint64_t, std::string>> open;
  for (const std::string& begin : {nothing, held.has_value() ? held->bytes() : nothing}) {
    found[begin] = {};
    open.emplace(0, begin);
  }
  while (!open.empty()) {
    const auto [bytes, state] = *open.begin();
    open.erase(open.begin());
    if (std::exchange(found[state].done, true)) continue;
    const auto [first, last] = steps.equal_range(state);
    for (auto it = first; it != last; ++it) {
      const std::string to = end_of(it->second);
      const uint64_t total = bytes + it->second.edge.bytes;
      const auto [known, fresh] = found.try_emplace(to);
      if (!fresh && (known->second.done || known->second.bytes <= total)) continue;
      known->second = {.bytes = total, .last = &it->second, .before = state};
      open.emplace(total, to);
    }
  }

  std::vector<Step> path;
  for (auto at = found.find(target.bytes()); at != found.end() && at->second.last != nullptr;
       at = found.find(at->second.before))
    path.push_back(*at->second.last);
  std::reverse(path.begin(), path.end());
  return path;
}

// Takes the result, which has the fingerprint result->state, along one edge.
absl::Status WeightFetcher::TakeStep(const rpc::Channel& channel, const Step& step,
                                     const std::function<absl::Status()>& renew,
                                     rpc::Cancel* cancel, Result* result) const {
  // Download the manifest, which lists the chunks.
  const Edge& edge = step.edge;
  std::string manifest_bytes;
  SLUICE_RETURN_IF_ERROR(FetchObjects(channel, {edge.manifest}, cancel, [&](std::string object) {
    manifest_bytes = std::move(object);
    return absl::OkStatus();
  }));
  weights::v1::Manifest manifest;
  if (manifest_bytes.size() > kMaxManifest || !manifest.ParseFromString(manifest_bytes)) {
    return absl::DataLossError(
        absl::StrCat("the manifest of version ", edge.version.str(), " has ", manifest_bytes.size(),
                     " bytes and cannot be parsed; the limit is ", kMaxManifest, " bytes"));
  }
  SLUICE_RETURN_IF_ERROR(CheckManifest(manifest, edge));

  const bool whole = !edge.base.has_value();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> chunks, ChunksOf(manifest, whole ? 0 : 1));
  const int sign = step.backward ? -1 : +1;
  TensorSet* const tensors = result->tensors;
  std::vector<DeltaTarget> targets;
  if (tensors != nullptr) targets = WholeTensors(tensors);
  std::vector<Fingerprint> sums(specs_.size());
  uint64_t written = 0;
  const auto take = [&](std::string chunk) -> absl::Status {
    result->bytes += chunk.size();
    if (whole) return DecodeFullChunk(chunk, tensors, &written);
    SLUICE_ASSIGN_OR_RETURN(DeltaChunk delta, DeltaChunk::Parse(std::move(chunk), specs_));
    if (tensors != nullptr) {
      delta.Apply(sign, targets, absl::MakeSpan(sums));
    } else {
      result->delta->chunks.push_back({std::move(delta), sign});
    }
    return absl::OkStatus();
  };
  for (size_t first = 0; first < chunks.size(); first += kObjectsPerStream) {
    if (first > 0) SLUICE_RETURN_IF_ERROR(renew());
    SLUICE_RETURN_IF_ERROR(FetchObjects(
        channel, absl::MakeConstSpan(chunks).subspan(first, kObjectsPerStream), cancel, take));
  }
  if (result->delta != nullptr) {
    // The engine that applies the delta finds out whether it leads there.
    result->state = step.backward ? *edge.base : edge.state;
    return ReadTensorStates(manifest, step.backward, &result->delta->tensor_states);
  }
  if (!whole) {
    result->state += Sum(sums);
    return absl::OkStatus();
  }
  uint64_t expected = 0;
  for (size_t i = 0; i < tensors->size(); ++i) expected += static_cast<uint64_t>(tensors->bytes(i));
  if (written != expected) {
    return absl::DataLossError(absl::StrCat("the chunks of version ", edge.version.str(), " hold ",
                                            written, " bytes; wanted: ", expected));
  }
  // The engine computes the fingerprint of what it packs; here the SHA-256 of the chunks stand for
  // it.
  result->state = edge.state;
  return absl::OkStatus();
}

// Checks a downloaded manifest against the trainer's list.
absl::Status WeightFetcher::CheckManifest(const weights::v1::Manifest& manifest,
                                          const Edge& edge) const {
  if (manifest.job() != caller_.job) {
    return absl::DataLossError(absl::StrCat("the manifest of version ", edge.version.str(),
                                            " belongs to job ", manifest.job(), ", not to ",
                                            caller_.job));
  }
  const auto kind =
      edge.base.has_value() ? weights::v1::Manifest::KIND_DELTA : weights::v1::Manifest::KIND_FULL;
  if (manifest.incarnation() != edge.version.incarnation ||
      manifest.version() != edge.version.number || manifest.kind() != kind ||
      manifest.state() != edge.state.bytes() ||
      manifest.base() != (edge.base.has_value() ? edge.base->bytes() : "")) {
    // A state has 16 bytes, but that of a wrong manifest may be longer.
    return absl::DataLossError(absl::StrCat(
        "the manifest of version ", manifest.incarnation(), ":", manifest.version(), " with state ",
        ToHex(manifest.state().substr(0, 16)), " is listed as version ", edge.version.str(),
        " with state ", ToHex(edge.state.bytes())));
  }
  if (manifest.layout_id() != layout_id_) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", edge.version.str(), " has the layout ",
                     ShortName(manifest.layout_id()), ", but this engine's model has ",
                     ShortName(layout_id_), ": trainer and rollout were given different models"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PublishedVersion>> WeightFetcher::List(
    const rpc::Channel& channel) const {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Edge> edges, ListEdges(channel, nullptr));
  std::vector<PublishedVersion> versions;
  for (const Edge& edge : edges) {
    // A version that is there as a whole and as a delta is named by its delta, which comes last.
    if (!versions.empty() && versions.back().version == edge.version) versions.pop_back();
    versions.push_back({.version = edge.version, .manifest = edge.manifest, .state = edge.state});
  }
  return versions;
}

absl::Status WeightFetcher::Lease(const rpc::Channel& channel, const PublishedVersion& version,
                                  absl::Duration ttl) const {
  return LeaseManifests(channel, {version.manifest}, ttl, nullptr);
}

absl::Status WeightFetcher::LeaseManifests(const rpc::Channel& channel,
                                           std::vector<std::string> manifests, absl::Duration ttl,
                                           rpc::Cancel* cancel) const {
  weights::v1::LeaseRequest request;
  *request.mutable_call() = MakeCall();
  for (std::string& manifest : manifests) request.add_manifests(std::move(manifest));
  *request.mutable_ttl() = rpc::ToProto(ttl);
  weights::v1::LeaseResponse response;
  return rpc::Call(channel, request, &response, {.cancel = cancel});
}

// Downloads objects in the order of `ids` and passes each to `on_object`, after checking its CRCs
// and that its SHA-256 is its id.
absl::Status WeightFetcher::FetchObjects(const rpc::Channel& channel,
                                         absl::Span<const std::string> ids, rpc::Cancel* cancel,
                                         const ObjectHandler& on_object) const {
  weights::v1::FetchRequest request;
  *request.mutable_call() = MakeCall();
  for (const std::string& id : ids) request.add_objects()->set_id(id);
  rpc::ClientStream stream(channel, *weights::v1::FetchRequest::descriptor(), cancel,
                           kStreamDeadline);
  stream.Write(request);
  stream.WritesDone();
  rpc::Frame frame;
  size_t next = 0;
  std::string object;

  // One frame is a piece of object `next`; the pieces of an object come in order.
  while (next < ids.size() && stream.ReadFrame(&frame)) {
    weights::v1::FetchHeader header;
    SLUICE_RETURN_IF_ERROR(frame.ParseHeader(&header));
    if (header.missing_size() > 0)
      return absl::NotFoundError(
          absl::StrCat("the trainer no longer has object ", ShortName(ids[next])));

    if (header.index() != next || header.offset() != object.size())
      return absl::DataLossError("the pieces of objects came out of order");
    if (header.size() > kMaxManifest)
      return absl::ResourceExhaustedError(
          absl::StrCat("an object has ", header.size(), " bytes; the limit is ", kMaxManifest));

    const size_t at = object.size();
    object.resize(at + frame.payload_bytes());
    rpc::PayloadReader reader(frame);
    SLUICE_ASSIGN_OR_RETURN(const uint32_t crc,
                            reader.Copy(frame.payload_bytes(), object.data() + at));
    if (crc != header.crc32c())
      return Error(absl::StatusCode::kDataLoss, "BAD_CRC",
                   absl::StrCat("the piece of object ", ShortName(ids[next]), " at byte ", at,
                                " has a wrong CRC"));

    if (object.size() < header.size()) continue;
    if (Sha256(object) != ids[next])
      return Error(
          absl::StatusCode::kDataLoss, "BAD_DIGEST",
          absl::StrCat("object ", ShortName(ids[next]), " has another SHA-256 than its id"));
    SLUICE_RETURN_IF_ERROR(on_object(std::move(object)));
    object.clear();
    ++next;
  }
  if (next == ids.size()) return absl::OkStatus();
  const absl::Status end = stream.Finish();
  if (!end.ok()) return end;
  return absl::UnavailableError(
      absl::StrCat("the trainer ended the stream after ", next, " of ", ids.size(), " objects"));
}

}  // namespace sluice
