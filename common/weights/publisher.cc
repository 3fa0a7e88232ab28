#include "common/weights/publisher.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "common/weights/chunk.h"
#include "common/weights/delta_chunk.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

// Deltas from one anchor to the next. One that joins late fetches their manifests one by one.
constexpr int kMostDeltas = 128;

// A version is cut into this many chunks for each receiver, if they are not smaller than this.
constexpr uint64_t kChunksPerReceiver = 20, kSmallestTarget = 128 << 10;

}  // namespace

WeightPublisher::WeightPublisher(Options options, Clock* clock)
    : options_(std::move(options)), clock_(clock) {}

absl::StatusOr<PublishedVersion> WeightPublisher::Publish(const TensorSet& weights,
                                                          PolicyVersion version,
                                                          const std::string& source,
                                                          std::optional<int64_t> hold_until) {
  SLUICE_ASSIGN_OR_RETURN(const PublishedVersion stored,
                          Store(weights, version, source, hold_until));
  Promote(stored);
  return stored;
}

void WeightPublisher::Promote(const PublishedVersion& staged) {
  if (options_.on_stored) options_.on_stored();
  MoveLatest(staged);
}

absl::StatusOr<PublishedVersion> WeightPublisher::Stage(const TensorSet& weights,
                                                        PolicyVersion version) {
  SLUICE_CHECK(options_.retain_versions >= 2);
  return Store(weights, version, "", std::nullopt);
}

absl::StatusOr<PublishedVersion> WeightPublisher::Store(const TensorSet& weights,
                                                        PolicyVersion version,
                                                        const std::string& source,
                                                        std::optional<int64_t> hold_until) {
  // The trainer publishes one version after the other, so there is no newer one before this one is
  // stored.
  std::optional<PolicyVersion> newest;
  {
    MutexLock lock(&mu_);
    if (!versions_.empty()) newest = versions_.back().version.version;
  }
  if (newest && version <= *newest) {
    return ErrorWith(
        absl::StatusCode::kAborted, {.reason = "LOST_RACE", .current = newest->str()},
        absl::StrCat("version ", version.str(), " is not above the published ", newest->str()));
  }

  const std::optional<Fingerprint> base =
      shadow_.has_value() && shadow_->layout_id == weights.layout_id()
          ? std::optional<Fingerprint>(Sum(shadow_->tensors))
          : std::nullopt;
  const uint64_t target = ChunkTarget();
  uint64_t whole = 0;
  for (size_t i = 0; i < weights.size(); ++i) whole += static_cast<uint64_t>(weights.bytes(i));
  std::optional<Chunks> delta = UpdateShadow(weights, target, whole / 2);
  // A relabel needs no chunks, however versions are sent.
  const bool relabel = base == Sum(shadow_->tensors);
  if (relabel) delta.emplace();
  bool anchor = !delta.has_value();
  if (!relabel) {
    if (delta.has_value()) delta_bytes_ += delta->bytes, ++deltas_;
    anchor |= TakeAnchorWish() || delta_bytes_ > whole / 2 || deltas_ > kMostDeltas;
  }
  // A shadow whose memory was damaged gives deltas that all receivers take for right. They are
  // given what is right as a whole.
  if (anchor && delta.has_value() && !ReplaceShadow(weights)) {
    log::Error("weights_shadow_damaged", {{"job_id", options_.job}, {"version", version.str()}});
    delta.reset();
  }
  const Fingerprint state = Sum(shadow_->tensors);

  weights::v1::Manifest manifest;
  manifest.set_job(options_.job);
  manifest.set_incarnation(version.incarnation);
  manifest.set_version(version.number);
  manifest.set_layout_id(weights.layout_id());
  for (const Fingerprint& tensor : shadow_->tensors)
    manifest.mutable_tensor_states()->append(tensor.bytes());
  manifest.set_state(state.bytes());
  manifest.set_source(source);
  manifest.set_chunk_target_bytes(static_cast<uint32_t>(target));
  *manifest.mutable_created() = rpc::ToProto(clock_->Now());
  manifest.set_policy(options_.policy);

  std::map<std::string, std::shared_ptr<const std::string>> objects;
  const auto store = [&](std::string object) {
    const std::string id = Sha256(object);
    objects[id] = std::make_shared<const std::string>(std::move(object));
    return id;
  };
  // Stores the manifest of this kind with its chunks.
  const auto make = [&](weights::v1::Manifest::Kind kind, uint32_t codec, Chunks chunks) {
    Objects made{.bytes = chunks.bytes, .ids = {""}};
    manifest.set_kind(kind);
    manifest.clear_chunks();
    for (std::string& chunk : chunks.chunks) {
      weights::v1::Chunk* const entry = manifest.add_chunks();
      entry->set_codec(codec);
      entry->set_crc32c(Crc32c(chunk));
      entry->set_wire_bytes(static_cast<uint32_t>(chunk.size()));
      entry->set_sha256(store(std::move(chunk)));
      made.ids.push_back(entry->sha256());
    }
    made.manifest = made.ids[0] = store(manifest.SerializeAsString());
    return made;
  };
  StoredVersion made{.version = {.version = version, .state = state, .hold_until = hold_until},
                     .created = clock_->Now()};
  if (anchor) {
    Chunks full;
    EncodeFullChunks(weights, target, [&](std::string chunk) {
      full.bytes += chunk.size();
      full.chunks.push_back(std::move(chunk));
    });
    made.full = make(weights::v1::Manifest::KIND_FULL, 0, std::move(full));
    made.version.manifest = made.full->manifest;
    delta_bytes_ = 0, deltas_ = 0;
  }
  if (delta.has_value()) {
    made.base = *base;
    manifest.set_base(base->bytes());
    manifest.set_tile_log2(kernels::kDeltaTileLog2);
    for (const std::string& chunk : delta->chunks)
      manifest.set_changed(manifest.changed() + static_cast<int64_t>(CountChanged(chunk)));
    made.delta = make(weights::v1::Manifest::KIND_DELTA, 1, *std::move(delta));
    made.version.manifest = made.delta->manifest;
  }

  last_bytes_ = (made.delta.has_value() ? *made.delta : *made.full).bytes;

  {
    MutexLock lock(&mu_);
    objects_.merge(objects);
    versions_.push_back(made);
    FreeUnused();
  }
  return made.version;
}

uint64_t WeightPublisher::ChunkTarget() const {
  const uint64_t most = options_.chunk_target_bytes, receivers = static_cast<uint64_t>(receivers_);
  if (receivers < 2 || most <= kSmallestTarget) return most;
  return std::clamp(last_bytes_ / (kChunksPerReceiver * receivers), kSmallestTarget, most);
}

bool WeightPublisher::ReplaceShadow(const TensorSet& weights) {
  std::vector<Fingerprint> tensors = TensorFingerprints(weights);
  const bool same = shadow_.has_value() && shadow_->tensors == tensors;
  const bool deltas = options_.encoding != WeightEncoding::kFull;
  // The copy of the old shadow is freed first.
  shadow_.reset();
  shadow_ = Shadow{weights.layout_id(), deltas ? weights : TensorSet(), std::move(tensors)};
  return same;
}

std::optional<WeightPublisher::Chunks> WeightPublisher::UpdateShadow(const TensorSet& weights,
                                                                     uint64_t target,
                                                                     uint64_t most) {
  if (options_.encoding == WeightEncoding::kFull || !shadow_.has_value() ||
      shadow_->layout_id != weights.layout_id()) {
    ReplaceShadow(weights);
    return std::nullopt;
  }
  std::vector<DeltaInput> inputs;
  for (size_t i = 0; i < weights.size(); ++i) {
    const TensorSpec& spec = weights.spec(i);
    inputs.push_back({.tensor = static_cast<uint32_t>(i),
                      .width = static_cast<int>(DTypeBytes(spec.dtype)),
                      .source = {.shard = {.tid = TensorKey(spec.name),
                                           .count = static_cast<uint64_t>(weights.elements(i))},
                                 .now = weights.data(i),
                                 .shadow = shadow_->weights.data(i)}});
  }
  Chunks delta;
  EncodeDeltaChunks(
      inputs, {.target_bytes = target},
      [](int64_t n, absl::FunctionRef<void(int64_t)> work) {
        for (int64_t i = 0; i < n; ++i) work(i);
      },
      [&](std::string chunk) {
        delta.bytes += chunk.size();
        delta.chunks.push_back(std::move(chunk));
        // The rest is encoded for the shadow alone.
        if (delta.bytes > most) delta.chunks.clear();
      },
      absl::MakeSpan(shadow_->tensors));
  if (delta.bytes > most) return std::nullopt;
  return delta;
}

bool WeightPublisher::TakeAnchorWish() {
  MutexLock lock(&mu_);
  return std::exchange(anchor_wanted_, false);
}

std::shared_ptr<const std::string> WeightPublisher::FindObject(const std::string& id) const {
  MutexLock lock(&mu_);
  const auto it = objects_.find(id);
  return it == objects_.end() ? nullptr : it->second;
}

void WeightPublisher::Lease(const std::string& holder, std::vector<std::string> manifests,
                            absl::Duration ttl) {
  MutexLock lock(&mu_);
  leases_[holder] = {holder, std::move(manifests), clock_->Monotonic() + ttl};
  FreeUnused();
}

absl::Status WeightPublisher::SetPin(const std::string& manifest, bool on) {
  MutexLock lock(&mu_);
  if (!on) {
    pins_.erase(manifest);
    FreeUnused();
    return absl::OkStatus();
  }
  if (manifest.empty() && !versions_.empty()) {
    pins_.insert(versions_.back().version.manifest);
    return absl::OkStatus();
  }
  if (!objects_.contains(manifest)) {
    return ErrorWith(absl::StatusCode::kNotFound,
                     {.reason = "GONE", .hint = "`sluice weights list` shows what is kept"},
                     "the version has been freed");
  }
  pins_.insert(manifest);
  return absl::OkStatus();
}

std::vector<WeightPublisher::HeldLease> WeightPublisher::leases() const {
  MutexLock lock(&mu_);
  std::vector<HeldLease> leases;
  for (const auto& [unused, lease] : leases_) {
    if (lease.expires > clock_->Monotonic()) leases.push_back(lease);
  }
  for (const std::string& manifest : pins_)
    leases.push_back({.holder = "", .manifests = {manifest}, .pin = true});
  return leases;
}

void WeightPublisher::Report(ReplicaState state) {
  MutexLock lock(&mu_);
  state.reported_at = clock_->Monotonic();
  if (state.phase == "REFUSED") anchor_wanted_ = true;
  std::string worker = state.worker;
  replicas_[std::move(worker)] = std::move(state);
}

void WeightPublisher::SetTrial(std::optional<Trial> trial) {
  MutexLock lock(&mu_);
  trial_ = std::move(trial);
}

std::optional<WeightPublisher::Trial> WeightPublisher::trial() const {
  MutexLock lock(&mu_);
  return trial_;
}

void WeightPublisher::SetWithdrawn(std::vector<Withdrawn> withdrawn) {
  MutexLock lock(&mu_);
  withdrawn_ = std::move(withdrawn);
}

std::vector<WeightPublisher::Withdrawn> WeightPublisher::withdrawn() const {
  MutexLock lock(&mu_);
  return withdrawn_;
}

std::vector<ReplicaState> WeightPublisher::replicas() const {
  MutexLock lock(&mu_);
  std::vector<ReplicaState> out;
  for (const auto& [unused, replica] : replicas_) out.push_back(replica);
  return out;
}

std::vector<WeightPublisher::Edge> WeightPublisher::edges() const {
  MutexLock lock(&mu_);
  return ListEdges();
}

std::optional<WeightPublisher::Snapshot> WeightPublisher::TakeSnapshot() const {
  MutexLock lock(&mu_);
  if (versions_.empty()) return std::nullopt;
  return Snapshot{versions_.back().version, ListEdges(), objects_};
}

std::vector<WeightPublisher::Edge> WeightPublisher::ListEdges() const {
  std::vector<Edge> out;
  for (const StoredVersion& stored : versions_) {
    const auto add = [&](const Objects& objects, std::optional<Fingerprint> base) {
      out.push_back({stored.version, objects.manifest, base, objects.bytes, stored.created});
    };
    if (stored.full.has_value()) add(*stored.full, std::nullopt);
    if (stored.delta.has_value()) add(*stored.delta, stored.base);
  }
  return out;
}

void WeightPublisher::FreeUnused() {
  // Drop leases that have ended.
  std::set<std::string> leased = pins_;
  for (auto it = leases_.begin(); it != leases_.end();) {
    if (it->second.expires <= clock_->Monotonic()) {
      it = leases_.erase(it);
      continue;
    }
    leased.insert(it->second.manifests.begin(), it->second.manifests.end());
    ++it;
  }

  const size_t newest = static_cast<size_t>(std::max(1, options_.retain_versions));
  std::vector<Kept> kept(versions_.size());
  for (size_t i = 0; i < versions_.size(); ++i) {
    const StoredVersion& stored = versions_[i];
    const bool among_newest = i + newest >= versions_.size();
    const auto is_leased = [&](const std::optional<Objects>& objects) {
      return objects.has_value() && leased.contains(objects->manifest);
    };
    kept[i].delta = stored.delta.has_value() && (among_newest || is_leased(stored.delta));
    kept[i].full = is_leased(stored.full) || (among_newest && !stored.delta.has_value());
  }
  for (size_t i = versions_.size(); i-- > 0;) {
    if (kept[i].any() && !kept[i].full) KeepWayTo(i, &kept);
  }

  std::vector<StoredVersion> left;
  std::set<std::string> needed;
  for (size_t i = 0; i < versions_.size(); ++i) {
    if (!kept[i].any()) continue;
    StoredVersion& stored = left.emplace_back(std::move(versions_[i]));
    if (!kept[i].full) stored.full.reset();
    if (!kept[i].delta) stored.delta.reset();
    for (const std::optional<Objects>* objects : {&stored.full, &stored.delta}) {
      if (objects->has_value()) needed.insert((*objects)->ids.begin(), (*objects)->ids.end());
    }
  }
  versions_ = std::move(left);
  std::erase_if(objects_, [&](const auto& object) { return !needed.contains(object.first); });
}

bool WeightPublisher::IsLinked(size_t i) const {
  return i > 0 && i < versions_.size() && versions_[i].delta.has_value() &&
         versions_[i].base == versions_[i - 1].version.state;
}

void WeightPublisher::KeepWayTo(size_t i, std::vector<Kept>* kept) {
  // A way has the deltas of all versions from the lower end, exclusive, to the upper one. It is
  // chosen by the bytes that are fetched, not by those that are kept for it alone: else ways would
  // grow longer and longer for the sake of deltas that others have.
  size_t best = versions_.size();
  uint64_t least = 0;
  const auto offer = [&](size_t anchor, uint64_t deltas) {
    const uint64_t bytes = deltas + versions_[anchor].full->bytes;
    if (best < versions_.size() && bytes >= least) return;
    best = anchor, least = bytes;
  };
  uint64_t deltas = 0;
  for (size_t j = i;; --j) {
    if (versions_[j].full.has_value()) offer(j, deltas);
    if (!IsLinked(j)) break;
    deltas += versions_[j].delta->bytes;
  }
  deltas = 0;
  for (size_t j = i + 1; IsLinked(j); ++j) {
    deltas += versions_[j].delta->bytes;
    if (versions_[j].full.has_value()) offer(j, deltas);
  }
  SLUICE_CHECK(best < versions_.size());
  (*kept)[best].full = true;
  // A relabel leads nowhere.
  for (size_t j = std::min(i, best) + 1; j <= std::max(i, best); ++j)
    (*kept)[j].delta |= !(versions_[j].base == versions_[j].version.state);
}

}  // namespace sluice
