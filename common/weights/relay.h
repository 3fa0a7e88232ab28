#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/weights/weight_source.h"

namespace sluice {

// What a rollout passes on to other rollouts: the manifests and chunks of the newest version that
// it fetches or has fetched. An object is served as soon as it has arrived and was checked, so the
// next rollout receives a version while this one still does.
//
// Its memory holds the objects of at most two versions: of the newest one, and, until that one is
// complete, of the one before. What a version does not need any more is freed then.
//
// Thread-safe. Owns no thread.
class WeightRelay : public WeightSource {
 public:
  struct Options {
    // Called with the bytes of objects that were sent to others. May be empty. Must not block.
    std::function<void(uint64_t bytes)> on_sent;
  };
  WeightRelay() : WeightRelay(Options{}) {}
  explicit WeightRelay(Options options) : options_(std::move(options)) {}

  // This version has been fetched. Those who watch here hear of it. One thread calls it.
  void SetLatest(const PublishedVersion& version);

  // Begins to hold a version, for which its manifest and those of `path` are fetched. Objects that
  // are held already are kept, so that a version is not fetched again after a failure.
  void Begin(const PublishedVersion& version, std::vector<WeightEdge> path)
      ABSL_LOCKS_EXCLUDED(mu_);
  // These objects are fetched too: the chunks that the next manifest of the path names.
  void Expect(absl::Span<const std::string> ids) ABSL_LOCKS_EXCLUDED(mu_);
  // This rollout has this version, or a higher one, without having fetched it. No object of it is
  // coming that is not of the version that was begun last.
  void Reached(PolicyVersion version) ABSL_LOCKS_EXCLUDED(mu_);
  // An object has arrived whose SHA-256 is its id. It is kept if it is expected.
  void Add(const std::string& id, std::shared_ptr<const std::string> object)
      ABSL_LOCKS_EXCLUDED(mu_);
  // An object that is held has another SHA-256 than its id, so it is freed, and expected again.
  void Drop(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_);
  // The fetch of the version has ended. After a failure nothing more is coming, so that those who
  // wait here ask another holder.
  void End(bool complete) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees all objects, because no rollout fetches from this one any more.
  void Clear() ABSL_LOCKS_EXCLUDED(mu_);

  // An object is coming if it is expected, or as long as this rollout does not know all that the
  // version needs: until it has begun to fetch it and has read all manifests of the path.
  Lookup Find(const std::string& id, PolicyVersion wanted) const override ABSL_LOCKS_EXCLUDED(mu_);
  void CallWhenChanged(std::function<void()> changed) override ABSL_LOCKS_EXCLUDED(mu_);

  // Those whose manifest is here, without those of a version whose fetch has failed.
  std::vector<WeightEdge> edges() const override ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent(uint64_t bytes) override;

  uint64_t bytes() const ABSL_LOCKS_EXCLUDED(mu_);  // Of all objects held.

 private:
  // A version with the objects of the manifests that lead to it.
  struct Held {
    PublishedVersion version;
    std::vector<WeightEdge> path;
    std::map<std::string, std::shared_ptr<const std::string>> objects;  // By id.
    std::set<std::string> expected;                                     // Not here yet.
    size_t unread = 0;  // Manifests of the path whose chunks are not known yet.
    bool complete = false, failed = false;
  };
  std::shared_ptr<const std::string> FindHeld(const std::string& id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Expects an object, or takes it over from the version before.
  void ExpectObject(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Those to call once the lock is released.
  std::vector<std::function<void()>> TakeWaiters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;

  mutable Mutex mu_;
  // `before_` is complete, and is set only while `newest_` is not.
  std::optional<Held> newest_ ABSL_GUARDED_BY(mu_), before_ ABSL_GUARDED_BY(mu_);
  PolicyVersion reached_ ABSL_GUARDED_BY(mu_);  // The highest of Reached().
  std::vector<std::function<void()>> waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
