#include "common/weights/version_follower.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/weights/relay.h"

namespace sluice {

absl::Status VersionFollower::HearTrainer(const PublishedVersion& announced, bool candidate,
                                          absl::Duration now) {
  if (announced.version < newest_) {
    return absl::AbortedError(
        absl::StrCat("version ", newest_.str(),
                     " was announced before, so this is a trainer that was replaced"));
  }
  newest_ = announced.version;
  origin_latest_ = announced;
  candidate_.reset();
  if (candidate) candidate_ = announced.version;
  else if (untold_ == announced) relay_->SetLatest(*std::exchange(untold_, {}));
  Follow(announced, now);
  return absl::OkStatus();
}

void VersionFollower::HearOther(const PublishedVersion& announced, absl::Duration now) {
  const PolicyVersion version = announced.version;
  const bool is_newer = version > newest_ && (!latest_ || version > latest_->version);
  const bool other_trainer =
      newest_ != PolicyVersion() && version.incarnation != newest_.incarnation;
  if (is_newer && !other_trainer && (!(announced.state == held_) || from_nothing_))
    Follow(announced, now);
}

void VersionFollower::Follow(const PublishedVersion& announced, absl::Duration now) {
  if (!latest_ || latest_->manifest != announced.manifest) {
    ForgetFailures();
    announced_ = now;
  }
  latest_ = announced;
}

void VersionFollower::ForgetAnnouncements() {
  latest_.reset();
  origin_latest_.reset();
}

void VersionFollower::ForgetFailures() {
  backoff_.Reset();
  not_before_ = absl::ZeroDuration();
}

std::optional<absl::Duration> VersionFollower::next_download() const {
  if (!ShouldDownload()) return std::nullopt;
  return not_before_;
}

bool VersionFollower::ShouldDownload() const {
  if (!latest_ || offered_) return false;
  const PolicyVersion version = latest_->version;
  if (waiting_ == version) return false;
  // A message may have been under way for long, so that others have told of newer versions since.
  if (version <= held_version_) return false;
  // What is held may have changed since HearOther().
  if (is_hearsay() && latest_->state == held_ && !from_nothing_) return false;
  // During a replay the trainer publishes versions below the engine's. The engine keeps its weights
  // until `latest` has reached its version number again.
  const bool replay = latest_->hold_until.has_value() && held_version_.incarnation > 0 &&
                      held_version_.incarnation < version.incarnation;
  return !(replay && held_version_.number <= *latest_->hold_until &&
           version.number < held_version_.number);
}

VersionFollower::Download VersionFollower::Begin() {
  SLUICE_CHECK(ShouldDownload());
  untold_.reset();
  Download download{.version = *latest_,
                    .hearsay = is_hearsay(),
                    .announced = announced_,
                    .liars = std::exchange(liars_, {})};
  if (!from_nothing_) download.from = held_;
  return download;
}

void VersionFollower::OnStaged(const Download& download, const std::string& lister, bool relayed,
                               StagedWeights* staged) {
  offered_ = true;
  offered_lister_ = staged->delta != nullptr ? lister : "";
  staged->candidate = candidate_ == download.version.version;
  if (!relayed) return;
  if (staged->candidate) untold_ = download.version;
  else relay_->SetLatest(download.version);
}

void VersionFollower::OnNoRoom(const StagedWeights& staged) {
  offered_ = false;
  waiting_ = staged.version;
}

bool VersionFollower::MayOffer(StagedWeights* staged) const {
  const bool on_trial = candidate_ == staged->version;
  if (latest_ && latest_->version == staged->version) staged->candidate &= on_trial;
  return staged->version.incarnation >= newest_.incarnation && (!staged->candidate || on_trial) &&
         (staged->delta == nullptr || !from_nothing_);
}

void VersionFollower::OnOffered() {
  waiting_.reset();
  offered_ = true;
}

void VersionFollower::OnFailed(const Download& download, const absl::Status& why, bool cancelled,
                               absl::Duration at_least, absl::Duration now) {
  offered_ = false;
  if (absl::IsDataLoss(why) && ReasonOf(why) == "WRONG_PATH") from_nothing_ = true;
  const bool is_newest = latest_ && latest_->manifest == download.version.manifest;
  if (cancelled || !is_newest) return;
  not_before_ = now + backoff_.Next(at_least);
  // Perhaps nobody has it. Were it kept, what others announce would not be heard.
  if (is_hearsay()) latest_ = origin_latest_;
}

void VersionFollower::OnActivated(PolicyVersion version, Fingerprint state) {
  held_version_ = version;
  held_ = state;
  from_nothing_ = refused_ = false;
  offered_ = false;
  ForgetFailures();
}

void VersionFollower::OnRefused(PolicyVersion version, absl::Duration now) {
  offered_ = false;
  if (!offered_lister_.empty()) {
    // A delta that another rollout listed proves nothing against `held_` or what the trainer lists.
    liars_.push_back(offered_lister_);
  } else if (std::exchange(refused_, true)) {
    // What came may have been damaged here, after its check. If not, the way from `held_` is wrong.
    from_nothing_ = true;
  }
  if (latest_ && latest_->version == version) not_before_ = now + backoff_.Next();
}

void VersionFollower::OnDamaged() {
  // If a version is offered, the engine will refuse it too, unless it is whole.
  from_nothing_ = true;
  held_version_ = PolicyVersion();
}

}  // namespace sluice
