#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rl/version.h"
#include "common/rpc/backoff.h"
#include "common/weights/fingerprint.h"
#include "common/weights/staged.h"
#include "common/weights/weight_source.h"

namespace sluice {
class WeightRelay;

// Decides which version one engine downloads next, from which weights, and when: by what the
// trainer and others announce, by what the engine holds, and by what has failed.
//
// A download that has begun is completed before the newest version is fetched; otherwise no version
// would arrive when they come faster than they can be downloaded. No further version is downloaded
// until the engine has answered for the one that it was offered, unless it has no room for that.
//
// An announcement below the highest version that the trainer has announced so far comes from a
// trainer that was replaced and does not know it; it is not followed. A version that could not be
// downloaded, or that the engine refused, is tried again with back-off. A newer version is tried at
// once.
//
// What others say is only believed while the trainer is silent, and one of them may lie. So the
// last announcement of each is kept, and that of the one who has failed least is followed; of
// several, the newest version.
//
// Plain computation: all times are of one monotonic clock and are passed in. Not thread-safe.
class VersionFollower {
 public:
  // The engine holds weights with the fingerprint `held`, of no version yet. `relay` passes on what
  // is downloaded here and may be null; it is told which version it may name to others.
  VersionFollower(Fingerprint held, WeightRelay* relay, rpc::BackoffOptions backoff = {})
      : relay_(relay), backoff_(backoff), held_(held) {}

  // The trainer announces a version. `candidate`: it is on trial at this engine, and at no other.
  // ABORTED: this trainer was replaced; the announcement changes nothing.
  absl::Status HearTrainer(const PublishedVersion& announced, bool candidate, absl::Duration now);
  // Somebody else, `speaker`, who is a rollout or the folder, says what is the newest. That is
  // taken only for what is newer than all that the trainer announced, of the same trainer, and for
  // other weights than those held: that the same weights have another version now, nothing can
  // prove. What the trainer says next replaces it.
  void HearOther(const std::string& speaker, const PublishedVersion& announced, absl::Duration now);
  // The trainer is heard, so others are not believed any more.
  void ForgetOthers();
  // The trainer is another one now, and nobody else has what the old one announced.
  void ForgetAnnouncements();
  // The next download may begin at once.
  void ForgetFailures();

  // When the next download may begin, which may be past. Nullopt: there is nothing to download.
  std::optional<absl::Duration> next_download() const;
  struct Download {
    PublishedVersion version;
    std::optional<Fingerprint> from;     // Nullopt: it begins at nothing.
    std::optional<std::string> speaker;  // Who announced it, if it was not the trainer.
    absl::Duration announced;            // When.
    // Holders whose lists led to what the engine refused, since the last download.
    std::vector<std::string> liars;
  };
  // Begins the next download, which there must be.
  Download Begin();
  // It has brought `staged`, which is offered to the engine and is told here whether it is on
  // trial. `lister` is who listed the way to it, and `relayed` says whether the relay holds it.
  void OnStaged(const Download& download, const std::string& lister, bool relayed,
                StagedWeights* staged);
  // The engine has no room for what it is offered, so that waits, and newer versions are downloaded
  // meanwhile.
  void OnNoRoom();
  // Whether what waits may be offered still: not if a new trainer has taken over, if it was on
  // trial and is not any more, or if it begins at weights that are damaged. Tells it if it was
  // promoted.
  bool MayOffer(StagedWeights* staged) const;
  // Nothing waits any more: it was dropped, or it is offered now.
  void OnDropped() { waiting_.reset(); }
  void OnOffered();
  // It has failed. `cancelled`: it was ended from here, which says nothing against the version.
  // `at_least` is how long a holder asks to be left alone.
  void OnFailed(const Download& download, const absl::Status& why, bool cancelled,
                absl::Duration at_least, absl::Duration now);

  // The engine uses `version`, with the fingerprint `state`, from its next token on.
  void OnActivated(PolicyVersion version, Fingerprint state);
  // The engine found other bits than were announced and keeps its old weights. The version is
  // downloaded again, and at the second refusal from nothing. If it was a delta that another
  // rollout listed, that one is a liar instead.
  void OnRefused(PolicyVersion version, absl::Duration now);
  // The engine's weights are damaged. The next version that it is given, which may be the one it
  // had, begins at nothing.
  void OnDamaged();

  // What is followed.
  std::optional<PublishedVersion> latest() const;
  PolicyVersion newest() const { return newest_; }
  PolicyVersion held_version() const { return held_version_; }
  Fingerprint held() const { return held_; }
  // Whether the engine computes with a version that is on trial.
  bool tries_candidate() const { return candidate_.has_value() && held_version_ == *candidate_; }

 private:
  // What somebody announced last.
  struct Claim {
    PublishedVersion announced;
    absl::Duration heard;  // When.
    // Of downloads of what this one announced, whenever that was, since one was activated.
    int failures = 0;
  };

  const Claim* followed() const;
  bool IsNews(const Claim& claim) const;
  bool IsHeldBack(const PublishedVersion& announced) const;
  void ChooseClaim();
  void CountFailure(const Download& download);
  bool ShouldDownload() const;

  WeightRelay* const relay_;

  std::optional<Claim> origin_;          // Of the trainer.
  std::map<std::string, Claim> others_;  // By speaker.
  // Whose claim is followed, if not the trainer's.
  std::optional<std::string> speaker_;
  // The version that the trainer announced last, if it is on trial here.
  std::optional<PolicyVersion> candidate_;
  // The relay holds this version, which was on trial when it came, and has not named it to others.
  std::optional<PublishedVersion> untold_;
  // The highest version that any trainer announced, which never falls.
  PolicyVersion newest_;

  // Back-off after failures with what is followed, and the time of the next try.
  rpc::Backoff backoff_;
  absl::Duration not_before_;

  // What the engine holds.
  PolicyVersion held_version_;
  Fingerprint held_;
  // What it has been offered and has not answered for yet, and what waits until it has room.
  std::optional<Download> offered_, waiting_;
  // Its weights were found damaged before it answered for what it is offered, or while that was
  // downloaded.
  bool damaged_ = false;
  // Who listed the delta that was offered last; empty: the trainer did.
  std::string offered_lister_;
  std::vector<std::string> liars_;  // See Download.
  // It has refused a version since the last activation.
  bool refused_ = false;
  // Its weights are damaged, or a version that began at held_ was damaged or refused twice: the
  // next one begins at nothing.
  bool from_nothing_ = false;
};

}  // namespace sluice
