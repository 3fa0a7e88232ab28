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
  candidate_.reset();
  if (candidate) candidate_ = announced.version;
  else if (untold_ == announced) relay_->SetLatest(*std::exchange(untold_, {}));
  const Claim* const before = followed();
  const bool is_news = before == nullptr || before->announced.manifest != announced.manifest;
  origin_ = Claim{announced, is_news ? now : before->heard};
  others_.clear();
  ChooseClaim();
  if (is_news) ForgetFailures();
  return absl::OkStatus();
}

void VersionFollower::HearOther(const std::string& speaker, const PublishedVersion& announced,
                                absl::Duration now) {
  const auto [it, is_first] = others_.try_emplace(speaker, Claim{announced, now});
  Claim& claim = it->second;
  const bool is_news = is_first || claim.announced.manifest != announced.manifest;
  claim.announced = announced;
  if (is_news) claim.heard = now;
  ChooseClaim();
  // One who has failed could otherwise keep this rollout busy with ever newer versions.
  if (is_news && followed() == &claim && claim.failures == 0) ForgetFailures();
}

const VersionFollower::Claim* VersionFollower::followed() const {
  if (speaker_) return &others_.at(*speaker_);
  return origin_ ? &*origin_ : nullptr;
}

std::optional<PublishedVersion> VersionFollower::latest() const {
  const Claim* const claim = followed();
  if (claim == nullptr) return std::nullopt;
  return claim->announced;
}

// Whether somebody who is not the trainer may be believed, and says more than is known.
bool VersionFollower::IsNews(const Claim& claim) const {
  const PolicyVersion version = claim.announced.version;
  const bool other_trainer =
      newest_ != PolicyVersion() && version.incarnation != newest_.incarnation;
  return version > newest_ && version > held_version_ && !other_trainer &&
         (!(claim.announced.state == held_) || from_nothing_);
}

// During a replay the trainer publishes versions below the engine's. The engine keeps its weights
// until what is announced has reached its version number again.
bool VersionFollower::IsHeldBack(const PublishedVersion& announced) const {
  const PolicyVersion version = announced.version;
  const bool replay = announced.hold_until.has_value() && held_version_.incarnation > 0 &&
                      held_version_.incarnation < version.incarnation;
  return replay && held_version_.number <= *announced.hold_until &&
         version.number < held_version_.number;
}

void VersionFollower::ChooseClaim() {
  const Claim* best = nullptr;
  if (origin_ && origin_->announced.version > held_version_ && !IsHeldBack(origin_->announced))
    best = &*origin_;
  speaker_.reset();
  for (const auto& [speaker, claim] : others_) {
    if (!IsNews(claim) || IsHeldBack(claim.announced)) continue;
    const bool is_better =
        best == nullptr || claim.failures < best->failures ||
        (claim.failures == best->failures && claim.announced.version > best->announced.version);
    if (!is_better) continue;
    best = &claim;
    speaker_ = speaker;
  }
}

void VersionFollower::CountFailure(const Download& download) {
  if (origin_ && origin_->announced == download.version) ++origin_->failures;
  // The speaker may have said something newer meanwhile, which makes it no better.
  for (auto& [speaker, claim] : others_)
    claim.failures += speaker == download.speaker || claim.announced == download.version;
  ChooseClaim();
}

void VersionFollower::ForgetOthers() {
  others_.clear();
  speaker_.reset();
}

void VersionFollower::ForgetAnnouncements() {
  origin_.reset();
  ForgetOthers();
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
  const std::optional<PublishedVersion> next = latest();
  if (!next || offered_ || (waiting_ && waiting_->version == *next)) return false;
  // A message may have been under way for long, so that others have told of newer versions since.
  return next->version > held_version_ && !IsHeldBack(*next);
}

VersionFollower::Download VersionFollower::Begin() {
  SLUICE_CHECK(ShouldDownload());
  untold_.reset();
  Download download{.version = followed()->announced,
                    .speaker = speaker_,
                    .announced = followed()->heard,
                    .liars = std::exchange(liars_, {})};
  if (!from_nothing_) download.from = held_;
  return download;
}

void VersionFollower::OnStaged(const Download& download, const std::string& lister, bool relayed,
                               StagedWeights* staged) {
  offered_ = download;
  damaged_ = staged->delta != nullptr && from_nothing_;
  offered_lister_ = staged->delta != nullptr ? lister : "";
  staged->candidate = candidate_ == download.version.version;
  if (!relayed) return;
  if (staged->candidate) untold_ = download.version;
  else relay_->SetLatest(download.version);
}

void VersionFollower::OnNoRoom() { waiting_ = std::exchange(offered_, {}); }

bool VersionFollower::MayOffer(StagedWeights* staged) const {
  const bool on_trial = candidate_ == staged->version;
  const std::optional<PublishedVersion> next = latest();
  if (next && next->version == staged->version) staged->candidate &= on_trial;
  return staged->version.incarnation >= newest_.incarnation && (!staged->candidate || on_trial) &&
         (staged->delta == nullptr || !from_nothing_);
}

void VersionFollower::OnOffered() { offered_ = std::exchange(waiting_, {}); }

void VersionFollower::OnFailed(const Download& download, const absl::Status& why, bool cancelled,
                               absl::Duration at_least, absl::Duration now) {
  offered_.reset();
  if (absl::IsDataLoss(why) && ReasonOf(why) == "WRONG_PATH") from_nothing_ = true;
  if (cancelled) return ChooseClaim();
  CountFailure(download);
  const std::optional<PublishedVersion> next = latest();
  // The holder that asks to be left alone may have nothing to do with what another one says.
  if (next && next->manifest == download.version.manifest)
    not_before_ = now + backoff_.Next(at_least);
  else if (speaker_) not_before_ = now + backoff_.Next();
}

void VersionFollower::OnActivated(PolicyVersion version, Fingerprint state) {
  held_version_ = version;
  held_ = state;
  from_nothing_ = refused_ = false;
  offered_.reset();
  for (auto& [unused, claim] : others_) {
    if (claim.announced.version == version && claim.announced.state == state) claim.failures = 0;
  }
  ForgetFailures();
  ChooseClaim();
}

void VersionFollower::OnRefused(PolicyVersion version, absl::Duration now) {
  const std::optional<Download> refused = std::exchange(offered_, {});
  const bool lies = offered_lister_.empty() && !std::exchange(damaged_, false);
  if (!offered_lister_.empty()) {
    // A delta that another rollout listed proves nothing against `held_` or what the trainer lists.
    liars_.push_back(offered_lister_);
  } else if (std::exchange(refused_, true)) {
    // What came may have been damaged here, after its check. If not, the way from `held_` is wrong.
    from_nothing_ = true;
  }
  const std::optional<PublishedVersion> next = latest();
  if (next && next->version == version) not_before_ = now + backoff_.Next();
  if (refused && lies) CountFailure(*refused);
  else ChooseClaim();
}

void VersionFollower::OnDamaged() {
  // If a version is offered, the engine will refuse it too, unless it is whole.
  from_nothing_ = true;
  damaged_ = offered_.has_value();
  held_version_ = PolicyVersion();
  ChooseClaim();
}

}  // namespace sluice
