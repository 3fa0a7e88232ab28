#include "services/trainer/canary_trial.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/weights/relay_chain.h"

namespace sluice::trainer {
namespace {

// How often it is looked at what the canary has reported.
constexpr absl::Duration kPoll = absl::Milliseconds(20);
// A canary whose stream breaks for less than this may only have lost its connection. Were it
// replaced at once, two rollouts would have the version.
constexpr absl::Duration kGone = absl::Seconds(5);
// A canary that listens gets this long to load the version, as large ones take minutes.
constexpr absl::Duration kLoading = absl::Minutes(10);

}  // namespace

struct CanaryTrial::Round {
  WeightPublisher* weights;
  PublishedVersion version;
  CanaryRules rules;
  absl::Duration began;
  std::string canary;                    // Empty: there is none yet.
  std::set<std::string> tried;           // It and those before it.
  bool was_tried = false;                // By anybody.
  absl::Duration chosen;                 // When the canary was.
  absl::Duration seen;                   // When it was last seen to listen.
  std::optional<absl::Duration> active;  // Since when it computes with the version.
  uint64_t rows = 0;                     // That it had computed at `grew`.
  absl::Duration grew;
};

absl::Status CanaryTrial::Run(WeightPublisher* weights, const PublishedVersion& staged,
                              const CanaryRules& rules) {
  const absl::Duration now = job_->clock->Monotonic();
  Round round{.weights = weights,
              .version = staged,
              .rules = rules,
              .began = now,
              .canary = {},
              .tried = {},
              .was_tried = false,
              .chosen = now,
              .seen = now,
              .active = std::nullopt,
              .rows = 0,
              .grew = now};
  const auto waits = job_->waits.Begin(
      {.kind = "VERSION",
       .id = staged.version.str(),
       .cause = absl::StrCat("version ", staged.version.str(),
                             " is on trial at one rollout before the others get it"),
       .next =
           "`sluice weights list` shows what is known of it; it goes to all if it proves good"});
  do {
    ReplaceCanaryIfGone(&round);
    const CanaryEvidence evidence = Collect(&round);
    const CanaryVerdict verdict = JudgeCanary(rules, evidence);
    const absl::Duration waited = job_->clock->Monotonic() - round.began;
    weights->SetTrial(WeightPublisher::Trial{.version = staged.version,
                                             .canary = round.canary,
                                             .waited = waited,
                                             .text = verdict.reason});
    if (verdict.kind == CanaryVerdict::Kind::kWithdraw) return Withdraw(round, verdict.reason);
    if (verdict.kind == CanaryVerdict::Kind::kPromote) {
      NotePromotion(round, verdict);
      return absl::OkStatus();
    }
    // Nobody is there who could be harmed but those that come later.
    if (round.canary.empty() && !round.was_tried && waited >= rules.wait) {
      NotePromotion(round, {.kind = CanaryVerdict::Kind::kPromote,
                            .reason = "no rollout is there",
                            .not_known = "no rollout is there to try it"});
      return absl::OkStatus();
    }
    // None of those that tried has loaded it. They try again, and no other gets it before.
    if (round.canary.empty()) round.tried.clear();
  } while (AwaitPoll());
  weights->SetTrial(std::nullopt);
  return absl::CancelledError(absl::StrCat("the trial of version ", staged.version.str(),
                                           " was given up: the job leaves or goes back"));
}

std::string CanaryTrial::ChooseCanary(const WeightPublisher& weights,
                                      const std::set<std::string>& tried) const {
  std::vector<RelayMember> members;
  for (const std::string& worker : weights.listeners()) {
    if (!tried.contains(worker)) members.push_back({.id = worker, .address = ""});
  }
  if (members.empty()) return "";
  return SortIntoChain(std::move(members), absl::StrCat(job_->config.id, " policy")).front().id;
}

void CanaryTrial::ReplaceCanaryIfGone(Round* round) const {
  const absl::Duration now = job_->clock->Monotonic();
  if (!round->canary.empty()) {
    if (round->weights->listeners().contains(round->canary)) round->seen = now;
    const bool gone = now - round->seen > kGone;
    const bool late = !round->active.has_value() && now - round->chosen > kLoading;
    if (!gone && !late) return;
    job_->RaiseEvent(
        common::v1::SEVERITY_WARNING, "canary_replaced",
        absl::StrCat(
            "version ", round->version.version.str(), " is on trial at ", round->canary,
            gone ? ", which is gone; another rollout tries it"
                 : absl::StrCat(", which has not loaded it within ", absl::FormatDuration(kLoading),
                                "; another rollout tries it")));
  }

  round->canary = ChooseCanary(*round->weights, round->tried);
  if (round->canary.empty()) return;
  round->tried.insert(round->canary);
  round->was_tried = true;
  round->chosen = round->seen = now;
  round->active.reset();
  log::Info("canary_chosen", {{"job_id", job_->config.name},
                              {"version", round->version.version.str()},
                              {"canary", round->canary}});
  round->weights->Try(round->version, round->canary);
}

CanaryEvidence CanaryTrial::Collect(Round* round) const {
  CanaryEvidence evidence;
  for (const ReplicaState& replica : round->weights->replicas()) {
    if (replica.worker != round->canary || replica.version != round->version.version ||
        replica.phase != "ACTIVE" || !replica.health.has_value())
      continue;
    const absl::Duration now = job_->clock->Monotonic();
    if (!round->active.has_value()) round->active = round->grew = now;
    if (std::exchange(round->rows, replica.health->rows) != replica.health->rows) round->grew = now;
    evidence.served = now - *round->active;
    evidence.idle = now - round->grew;
    evidence.health = *replica.health;
  }
  const int64_t number = round->version.version.number;
  MutexLock lock(&rewards_mu_);
  evidence.canary = rewards_.SampleOf(number);
  evidence.others = rewards_.SampleBefore(number);
  return evidence;
}

absl::Status CanaryTrial::Withdraw(const Round& round, const std::string& fault) {
  round.weights->Withdraw();
  round.weights->SetTrial(std::nullopt);
  {
    MutexLock lock(&mu_);
    withdrawn_ = round.version.version;
  }
  // The publisher knows from the rollouts' own reports which of them have the version.
  std::vector<std::string> served;
  for (const ReplicaState& replica : round.weights->replicas()) {
    if (replica.version == round.version.version) served.push_back(replica.worker);
  }
  return Error(absl::StatusCode::kAborted, "WITHDRAWN",
               absl::StrCat("version ", round.version.version.str(), ", which only ",
                            absl::StrJoin(served, " and "), " has served, is withdrawn: ", fault));
}

void CanaryTrial::NotePromotion(const Round& round, const CanaryVerdict& verdict) {
  round.weights->SetTrial(std::nullopt);
  const std::string version = round.version.version.str();
  log::Info("version_promoted", {{"job_id", job_->config.name},
                                 {"version", version},
                                 {"canary", round.canary},
                                 {"seconds", job_->SecondsSince(round.began)},
                                 {"found", verdict.reason},
                                 {"not_known", verdict.not_known}});
  // It may be so of each version, so only the 1st, 2nd, 4th, 8th, .. is an event.
  if (verdict.not_known.empty() || !std::has_single_bit(static_cast<uint64_t>(++unjudged_))) return;
  job_->RaiseEvent(
      common::v1::SEVERITY_WARNING, "canary_unjudged",
      absl::StrCat("version ", version, " goes to all rollouts after ",
                   "weights.canary.wait, although not all is known of it: ", verdict.not_known));
}

std::optional<PolicyVersion> CanaryTrial::withdrawn() const {
  MutexLock lock(&mu_);
  return withdrawn_;
}

void CanaryTrial::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

bool CanaryTrial::AwaitPoll() {
  MutexLock lock(&mu_);
  if (!stopped_) changed_.WaitFor(&mu_, kPoll);
  return !stopped_;
}

void CanaryTrial::AddRewards(const std::vector<Group>& groups) {
  MutexLock lock(&rewards_mu_);
  for (const Group& group : groups) {
    std::optional<int64_t> oldest, newest;
    double sum = 0;
    for (const Trajectory& member : group.members) {
      sum += member.reward;
      for (const int64_t version : member.versions) {
        if (version < 0) continue;
        oldest = std::min(oldest.value_or(version), version);
        newest = std::max(newest.value_or(version), version);
      }
    }
    if (!oldest.has_value() || !std::isfinite(sum)) continue;
    rewards_.Add(*oldest, *newest, sum / static_cast<double>(group.members.size()));
  }
}

}  // namespace sluice::trainer
