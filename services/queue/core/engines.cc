#include "services/queue/core/engines.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::queue {

void Engines::SetLoaded(const std::string& worker, int64_t incarnation, const Loaded& loaded) {
  Engine& engine = engines_[worker];
  engine.loaded = loaded;
  engine.incarnation = incarnation;
}

void Engines::Renew(const std::string& worker, Instant now) {
  const auto it = engines_.find(worker);
  if (it != engines_.end()) it->second.renewed = now;
}

void Engines::RemoveUpTo(const std::string& worker, int64_t incarnation) {
  const auto it = engines_.find(worker);
  if (it != engines_.end() && it->second.incarnation <= incarnation) engines_.erase(it);
}

void Engines::RemoveUnlisted(const std::map<std::string, Worker>& listed) {
  for (auto it = engines_.begin(); it != engines_.end();)
    it = listed.contains(it->first) ? std::next(it) : engines_.erase(it);
}

const Engines::Engine* Engines::Find(const std::string& worker) const {
  const auto it = engines_.find(worker);
  return it == engines_.end() ? nullptr : &it->second;
}

// A queue that lost the job does not know what earlier trainers reached. An engine that still holds
// such a version does not live: it has to load a version again.
bool Engines::IsLive(const Engine& engine, Instant now) const {
  const PolicyVersion& version = engine.loaded.version;
  return engine.renewed + ttl_ > now && engine.loaded.verified && branch_.Holds(version) &&
         reached_.contains(version.incarnation);
}

std::optional<int64_t> Engines::NewestVersion(Instant now) const {
  std::optional<int64_t> newest;
  for (const auto& [worker, engine] : engines_) {
    if (!IsLive(engine, now)) continue;
    newest = std::max(newest.value_or(engine.loaded.version.number), engine.loaded.version.number);
  }
  return newest;
}

bool Engines::Counts(const Engine& engine, Instant now) const {
  if (!IsLive(engine, now)) return false;
  return *NewestVersion(now) - engine.loaded.version.number <= max_span_;
}

std::optional<int64_t> Engines::LowestVersion(Instant now) const {
  std::optional<int64_t> lowest;
  for (const auto& [worker, engine] : engines_) {
    if (!Counts(engine, now)) continue;
    lowest = std::min(lowest.value_or(engine.loaded.version.number), engine.loaded.version.number);
  }
  return lowest;
}

const Engines::Engine* Engines::FindServing(const Caller& caller, Instant now) const {
  const Engine* const engine = Find(caller.worker);
  if (engine == nullptr || engine->incarnation != caller.incarnation || !Counts(*engine, now))
    return nullptr;
  return engine;
}

Instant Engines::NextExpiry(Instant now) const {
  Instant next = absl::InfiniteDuration();
  for (const auto& [worker, engine] : engines_) {
    if (engine.renewed + ttl_ > now) next = std::min(next, engine.renewed + ttl_);
  }
  return next;
}

void Engines::Publish(const PolicyVersion& version) {
  SLUICE_CHECK(!published_ || *published_ < version);
  published_ = version;
}

void Engines::RaiseReached(int64_t incarnation, int64_t version) {
  int64_t& reached = reached_[incarnation];
  reached = std::max(reached, version);
}

absl::Status Engines::CheckStamps(const Piece& piece) const {
  for (const VersionRun& run : piece.runs) {
    const auto reached = reached_.find(run.version.incarnation);
    if (reached != reached_.end() && run.version.number <= reached->second) continue;

    const std::string why = reached == reached_.end()
                                ? " never trained"
                                : absl::StrCat(" has not reached; it is at ", reached->second);
    return Error(absl::StatusCode::kInvalidArgument, "BAD_VERSION",
                 absl::StrCat("tokens stamped ", run.version.str(), ", which incarnation ",
                              run.version.incarnation, why));
  }
  return absl::OkStatus();
}

}  // namespace sluice::queue
