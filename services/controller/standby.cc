#include "services/controller/standby.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "common/rpc/address.h"
#include "common/rpc/leader_search.h"

namespace sluice::controller {
namespace {

// How long a caller should wait before it asks this standby again.
constexpr absl::Duration kAskAgain = absl::Seconds(1);

// Whether the store, or how it was named, is wrong in a way that only a person can put right.
bool IsWrong(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsDataLoss(status);
}

std::string DescribeLeader(const std::string& leader, const std::string& trouble) {
  if (!trouble.empty()) return absl::StrCat("standby; the job store cannot be asked: ", trouble);
  if (leader.empty()) return "standby; no controller leads";
  return absl::StrCat("standby; ", leader, " leads");
}

}  // namespace

Standby::Standby(meta::Target target, const daemon::Host& host, Lead lead)
    : target_(std::move(target)), host_(host), lead_(std::move(lead)) {
  host.metrics->AddGauge("sluice_controller_leader", "1 if this controller leads.").Set(0);
}

absl::Status Standby::Refusal() {
  MutexLock lock(&mu_);
  return ErrorWith(
      absl::StatusCode::kUnavailable,
      {.reason = rpc::kStandby,
       .catalogue = "SLUICE-CTL-0030",
       .hint = "name all controllers, with commas between; the one that leads is found",
       .retry_after = kAskAgain,
       .current = leader_},
      absl::StrCat("this controller is a ", DescribeLeader(leader_, trouble_)));
}

absl::Status Standby::Start(const std::string& address, const std::string&) {
  SLUICE_ASSIGN_OR_RETURN(target_.holder, rpc::AdvertisedAddress("", address));
  thread_ = std::thread([this] { TakeLease(); });
  return absl::OkStatus();
}

std::string Standby::ready_text() {
  MutexLock lock(&mu_);
  return DescribeLeader(leader_, trouble_);
}

void Standby::Drain() {
  stop_.Trigger();
  if (thread_.joinable()) thread_.join();
}

bool Standby::NoteLeader(const std::string& leader, const std::string& trouble) {
  MutexLock lock(&mu_);
  const bool changed = leader != leader_ || trouble.empty() != trouble_.empty();
  leader_ = leader;
  trouble_ = trouble;
  return changed;
}

void Standby::TakeLease() {
  bool answered = false;  // The store has been asked with success, so it was named rightly.
  do {
    absl::StatusOr<std::unique_ptr<meta::Store>> store =
        meta::OpenRedis(target_, follower_ != nullptr ? &follower_->copy() : nullptr);
    if (store.ok()) {
      // A std::function must be able to copy what it holds.
      auto held = std::make_shared<std::unique_ptr<meta::Store>>(*std::move(store));
      return host_.replace(
          [held, lead = lead_](const daemon::Host& host) { return lead(host, std::move(*held)); });
    }

    const bool is_held = ReasonOf(store.status()) == "HELD";
    if (!answered && IsWrong(store.status())) return host_.stop(store.status());
    answered = answered || is_held;
    const std::string leader = is_held ? DetailOf(store.status()).current : "";
    const std::string trouble = is_held ? "" : std::string(store.status().message());
    if (NoteLeader(leader, trouble))
      log::Info("standby", {{"leader", leader}, {"trouble", trouble}});
    if (is_held) ReadAlong();
  } while (!stop_.WaitFor(target_.lease.poll));
}

void Standby::ReadAlong() {
  absl::Status status;
  if (follower_ == nullptr) {
    absl::StatusOr<std::unique_ptr<meta::RedisFollower>> made = meta::RedisFollower::Make(target_);
    status = made.status();
    if (made.ok()) follower_ = *std::move(made);
  }
  if (status.ok()) status = follower_->Follow([this] { return stop_.triggered(); });
  if (absl::IsCancelled(status)) return;
  if (std::exchange(read_along_, status.ok()) && !status.ok()) {
    log::Warning("store_not_read_along",
                 {{"cause", status}, {"next", "to take over, the whole store is read"}});
  }
}

}  // namespace sluice::controller
