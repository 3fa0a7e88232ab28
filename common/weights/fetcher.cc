#include "common/weights/fetcher.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "common/rpc/convert.h"
#include "common/rpc/stream.h"
#include "common/weights/chunk.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxManifest = 64 << 20;
// An object has about 1 MiB. The deadline is for one stream of 64 objects, so that weights of any
// size can be fetched.
constexpr size_t kObjectsPerStream = 64;
constexpr absl::Duration kStreamDeadline = absl::Minutes(1);

std::string ShortName(const std::string& id) { return ToHex(id).substr(0, 16); }

// The id of the full manifest with this version's state.
const std::string& AnchorOf(const PublishedVersion& version) {
  return version.anchor.empty() ? version.manifest : version.anchor;
}

// Checks a downloaded full manifest against the announcement.
absl::Status CheckManifest(const weights::v1::Manifest& manifest, const PublishedVersion& announced,
                           const std::string& job, const std::string& layout_id) {
  const PolicyVersion& version = announced.version;
  if (manifest.job() != job)
    return absl::DataLossError(absl::StrCat("the manifest of version ", version.str(),
                                            " belongs to job ", manifest.job(), ", not to ", job));
  // The full manifest of a relabel is that of an older version with the same state, so the version
  // numbers differ.
  const bool own = AnchorOf(announced) == announced.manifest;
  const bool right_version = !own || (manifest.incarnation() == version.incarnation &&
                                      manifest.version() == version.number);
  if (!right_version || manifest.state() != announced.state.bytes()) {
    // A state has 16 bytes, but that of a wrong manifest may be longer.
    return absl::DataLossError(absl::StrCat(
        "the manifest of version ", manifest.incarnation(), ":", manifest.version(), " with state ",
        ToHex(manifest.state().substr(0, 16)), " was announced as version ", version.str(),
        " with state ", ToHex(announced.state.bytes())));
  }
  if (manifest.kind() != weights::v1::Manifest::KIND_FULL)
    return absl::UnimplementedError(absl::StrCat("the manifest of version ", version.str(),
                                                 " is of kind ",
                                                 weights::v1::Manifest::Kind_Name(manifest.kind()),
                                                 ", but this build applies only full manifests"));
  if (manifest.layout_id() != layout_id) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", version.str(), " has the layout ", ShortName(manifest.layout_id()),
                     ", but this engine's model has ", ShortName(layout_id),
                     ": trainer and rollout were given different models"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ChunksOf(const weights::v1::Manifest& manifest) {
  std::vector<std::string> chunks;
  for (const weights::v1::Chunk& chunk : manifest.chunks()) {
    if (chunk.codec() != 0)
      return absl::UnimplementedError(
          absl::StrCat("a chunk has codec ", chunk.codec(), ", but this build reads only codec 0"));
    if (chunk.sha256().size() != 32 || chunk.wire_bytes() > kMaxChunkBytes + 4096)
      return absl::DataLossError("the manifest names a chunk with a malformed id or a wrong size");
    chunks.push_back(chunk.sha256());
  }
  return chunks;
}

}  // namespace

WeightFetcher::WeightFetcher(Caller caller, const TensorSet& layout)
    : caller_(std::move(caller)),
      specs_(layout.specs().begin(), layout.specs().end()),
      layout_id_(layout.layout_id()) {}

common::v1::Call WeightFetcher::MakeCall() const {
  common::v1::Call call;
  call.mutable_job()->set_job(caller_.job);
  call.mutable_job()->set_worker(caller_.worker);
  call.mutable_job()->set_incarnation(caller_.incarnation);
  return call;
}

absl::StatusOr<StagedWeights> WeightFetcher::Fetch(const rpc::Channel& channel,
                                                   const PublishedVersion& version,
                                                   const Fingerprint& held,
                                                   rpc::Cancel* cancel) const {
  StagedWeights staged{
      .version = version.version, .state = version.state, .manifest = version.manifest};
  if (staged.state == held) return staged;  // A relabel: only the version number changes.

  // Download the manifest, which lists the chunks.
  std::string bytes;
  SLUICE_RETURN_IF_ERROR(
      FetchObjects(channel, {AnchorOf(version)}, cancel, [&](std::string object) {
        bytes = std::move(object);
        return absl::OkStatus();
      }));
  weights::v1::Manifest manifest;
  if (bytes.size() > kMaxManifest || !manifest.ParseFromString(bytes))
    return absl::DataLossError(
        absl::StrCat("the manifest of version ", version.version.str(), " has ", bytes.size(),
                     " bytes and cannot be parsed; the limit is ", kMaxManifest, " bytes"));
  SLUICE_RETURN_IF_ERROR(CheckManifest(manifest, version, caller_.job, layout_id_));

  // Download the chunks and copy their elements to the tensors.
  SLUICE_ASSIGN_OR_RETURN(TensorSet tensors, TensorSet::Create(specs_));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> chunks, ChunksOf(manifest));
  uint64_t written = 0;
  for (size_t first = 0; first < chunks.size(); first += kObjectsPerStream) {
    SLUICE_RETURN_IF_ERROR(
        FetchObjects(channel, absl::MakeConstSpan(chunks).subspan(first, kObjectsPerStream), cancel,
                     [&](std::string object) {
                       staged.bytes += object.size();
                       return DecodeFullChunk(object, &tensors, &written);
                     }));
  }

  uint64_t expected = 0;
  for (size_t i = 0; i < tensors.size(); ++i) expected += static_cast<uint64_t>(tensors.bytes(i));
  if (written != expected)
    return absl::DataLossError(absl::StrCat("the chunks of version ", staged.version.str(),
                                            " hold ", written, " bytes; wanted: ", expected));
  staged.tensors = std::make_shared<const TensorSet>(std::move(tensors));
  return staged;
}

absl::StatusOr<std::vector<PublishedVersion>> WeightFetcher::List(
    const rpc::Channel& channel) const {
  weights::v1::ListRequest request;
  *request.mutable_call() = MakeCall();
  weights::v1::ListResponse response;
  SLUICE_RETURN_IF_ERROR(rpc::Call(channel, request, &response));
  std::vector<PublishedVersion> versions;
  std::map<std::string, std::string> anchors;  // State -> id of its full manifest.
  for (const weights::v1::VersionNode& node : response.nodes()) {
    if (node.kind() == weights::v1::Manifest::KIND_FULL) anchors[node.state()] = node.manifest();
    PublishedVersion& version = versions.emplace_back(
        PublishedVersion{.version = rpc::FromProto(node.version()), .manifest = node.manifest()});
    SLUICE_ASSIGN_OR_RETURN(version.state, Fingerprint::FromBytes(node.state()));
    version.anchor = anchors[node.state()];
  }
  return versions;
}

absl::Status WeightFetcher::Lease(const rpc::Channel& channel, const PublishedVersion& version,
                                  absl::Duration ttl) const {
  weights::v1::LeaseRequest request;
  *request.mutable_call() = MakeCall();
  request.add_manifests(version.manifest);
  *request.mutable_ttl() = rpc::ToProto(ttl);
  weights::v1::LeaseResponse response;
  return rpc::Call(channel, request, &response);
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
