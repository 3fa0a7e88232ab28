#include "common/weights/publisher.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/checkpoint/tensor_set.h"
#include "common/rpc/convert.h"
#include "common/weights/chunk.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {

WeightPublisher::WeightPublisher(Options options, Clock* clock)
    : options_(std::move(options)), clock_(clock) {}

absl::StatusOr<PublishedVersion> WeightPublisher::Publish(const TensorSet& weights,
                                                          PolicyVersion version,
                                                          const std::string& source,
                                                          std::optional<int64_t> hold_until) {
  // The trainer publishes one version after the other, so `latest` cannot move before the version
  // is stored.
  const std::optional<PublishedVersion> before = latest();
  if (before && version <= before->version) {
    return ErrorWith(absl::StatusCode::kAborted,
                     {.reason = "LOST_RACE", .current = before->version.str()},
                     absl::StrCat("version ", version.str(), " is not above the published ",
                                  before->version.str()));
  }

  weights::v1::Manifest manifest;
  manifest.set_job(options_.job);
  manifest.set_incarnation(version.incarnation);
  manifest.set_version(version.number);
  manifest.set_layout_id(weights.layout_id());
  Fingerprint state;
  for (const Fingerprint& tensor : TensorFingerprints(weights)) {
    manifest.mutable_tensor_states()->append(tensor.bytes());
    state += tensor;
  }
  manifest.set_state(state.bytes());
  manifest.set_source(source);
  manifest.set_chunk_target_bytes(static_cast<uint32_t>(options_.chunk_target_bytes));
  *manifest.mutable_created() = rpc::ToProto(clock_->Now());
  manifest.set_policy(options_.policy);

  StoredVersion made;
  made.layout_id = weights.layout_id();
  std::map<std::string, std::shared_ptr<const std::string>> objects;
  // With an anchor the version is a relabel, which needs no chunks.
  const std::string anchor = AnchorOf(state, made.layout_id);
  manifest.set_kind(anchor.empty() ? weights::v1::Manifest::KIND_FULL
                                   : weights::v1::Manifest::KIND_DELTA);
  if (!anchor.empty()) manifest.set_base(state.bytes());
  const auto add_chunk = [&](std::string chunk) {
    weights::v1::Chunk* const entry = manifest.add_chunks();
    const std::string id = Sha256(chunk);
    entry->set_sha256(id);
    entry->set_crc32c(Crc32c(chunk));
    entry->set_wire_bytes(static_cast<uint32_t>(chunk.size()));
    entry->set_raw_bytes(static_cast<uint32_t>(chunk.size()));
    made.node.bytes += chunk.size();
    made.objects.push_back(id);
    objects[id] = std::make_shared<const std::string>(std::move(chunk));
  };
  if (anchor.empty()) EncodeFullChunks(weights, options_.chunk_target_bytes, add_chunk);

  // The manifest is the first of the version's objects.
  std::string bytes = manifest.SerializeAsString();
  const std::string id = Sha256(bytes);
  made.objects.insert(made.objects.begin(), id);
  objects[id] = std::make_shared<const std::string>(std::move(bytes));
  made.node.version = {.version = version,
                       .manifest = id,
                       .state = state,
                       .anchor = anchor.empty() ? id : anchor,
                       .hold_until = hold_until};
  made.node.created = clock_->Now();

  // Listeners are called after the lock is released, because they may call the publisher.
  std::vector<std::function<void(const PublishedVersion&)>> listeners;
  {
    MutexLock lock(&mu_);
    objects_.merge(objects);
    versions_.push_back(made);
    FreeUnused();
    for (const auto& [unused, listener] : listeners_) listeners.push_back(listener);
  }
  for (const auto& listener : listeners) listener(made.node.version);
  return made.node.version;
}

// Returns the id of the full manifest of the version before, if that version has the same state;
// else "".
std::string WeightPublisher::AnchorOf(const Fingerprint& state,
                                      const std::string& layout_id) const {
  MutexLock lock(&mu_);
  if (versions_.empty()) return "";
  const StoredVersion& before = versions_.back();
  const bool same = before.node.version.state == state && before.layout_id == layout_id;
  return same ? before.node.version.anchor : "";
}

std::optional<PublishedVersion> WeightPublisher::latest() const {
  MutexLock lock(&mu_);
  if (versions_.empty()) return std::nullopt;
  return versions_.back().node.version;
}

uint64_t WeightPublisher::AddListener(std::function<void(const PublishedVersion&)> on_latest) {
  // The listener is added only once it has heard of `latest`. Were it added before, Publish() might
  // tell it of a newer version first.
  std::optional<PublishedVersion> told;
  while (true) {
    {
      MutexLock lock(&mu_);
      const bool news =
          !versions_.empty() && (!told || told->version != versions_.back().node.version.version);
      if (!news) {
        listeners_[next_listener_] = std::move(on_latest);
        return next_listener_++;
      }
      told = versions_.back().node.version;
    }
    on_latest(*told);
  }
}

void WeightPublisher::RemoveListener(uint64_t listener) {
  MutexLock lock(&mu_);
  listeners_.erase(listener);
}

std::shared_ptr<const std::string> WeightPublisher::FindObject(const std::string& id) const {
  MutexLock lock(&mu_);
  const auto it = objects_.find(id);
  return it == objects_.end() ? nullptr : it->second;
}

void WeightPublisher::Lease(const std::string& holder, std::vector<std::string> manifests,
                            absl::Duration ttl) {
  MutexLock lock(&mu_);
  leases_[holder] = {std::move(manifests), clock_->Monotonic() + ttl};
  FreeUnused();
}

void WeightPublisher::Report(ReplicaState state) {
  MutexLock lock(&mu_);
  state.reported_at = clock_->Monotonic();
  std::string worker = state.worker;
  replicas_[std::move(worker)] = std::move(state);
}

std::vector<ReplicaState> WeightPublisher::replicas() const {
  MutexLock lock(&mu_);
  std::vector<ReplicaState> out;
  for (const auto& [unused, replica] : replicas_) out.push_back(replica);
  return out;
}

std::vector<WeightPublisher::Node> WeightPublisher::nodes() const {
  MutexLock lock(&mu_);
  std::vector<Node> out;
  for (const StoredVersion& version : versions_) out.push_back(version.node);
  return out;
}

void WeightPublisher::FreeUnused() {
  // Drop leases that have ended.
  std::set<std::string> leased;
  for (auto it = leases_.begin(); it != leases_.end();) {
    if (it->second.expires <= clock_->Monotonic()) {
      it = leases_.erase(it);
      continue;
    }
    leased.insert(it->second.manifests.begin(), it->second.manifests.end());
    ++it;
  }

  const size_t newest = static_cast<size_t>(std::max(1, options_.retain_versions));
  const size_t old = versions_.size() > newest ? versions_.size() - newest : 0;
  // Ids of manifests to keep. Walking from new to old meets an anchor after its relabels.
  std::set<std::string> wanted;
  for (size_t i = versions_.size(); i-- > 0;) {
    const PublishedVersion& version = versions_[i].node.version;
    if (i < old && !leased.contains(version.manifest) && !wanted.contains(version.manifest))
      continue;
    wanted.insert({version.manifest, version.anchor});
  }

  std::vector<StoredVersion> kept;
  for (StoredVersion& version : versions_) {
    if (wanted.contains(version.node.version.manifest)) kept.push_back(std::move(version));
  }
  versions_ = std::move(kept);

  std::set<std::string> needed;
  for (const StoredVersion& version : versions_)
    needed.insert(version.objects.begin(), version.objects.end());
  std::erase_if(objects_, [&](const auto& object) { return !needed.contains(object.first); });
}

}  // namespace sluice
