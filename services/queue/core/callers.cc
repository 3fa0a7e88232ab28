#include "services/queue/core/callers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::queue {
namespace {
constexpr size_t kAnswersKept = 64;  // Per worker.

const char* RoleName(WorkerRole role) {
  switch (role) {
    case WorkerRole::kController: return "controller";
    case WorkerRole::kRollout: return "rollout";
    case WorkerRole::kReward: return "reward";
    case WorkerRole::kTrainer: return "trainer";
    case WorkerRole::kNone: break;
  }
  return "worker";
}

std::string FencedMessage(const Caller& caller, int64_t highest) {
  return absl::StrCat(caller.worker, " calls as incarnation ", caller.incarnation,
                      "; the newest that the controller listed is ", highest);
}

absl::Status NotListed(const Caller& caller) {
  return ErrorWith(absl::StatusCode::kUnavailable,
                   {.reason = "NOT_LISTED", .retry_after = absl::Milliseconds(100)},
                   absl::StrCat(caller.worker, " (incarnation ", caller.incarnation,
                                ") is not in the job's list of workers yet"));
}
}  // namespace

Callers::Change Callers::AddToList(const Worker& worker) {
  listed_[worker.id] = worker;
  Change change;

  int64_t& fence = fence_[worker.id];
  if (worker.incarnation > fence) {
    fence = worker.incarnation;
    kept_.erase(worker.id);
    change.newer_worker = true;
  }
  if (worker.role == WorkerRole::kTrainer && worker.incarnation > trainer_incarnation_) {
    trainer_incarnation_ = worker.incarnation;
    change.newer_trainers = true;
  }
  return change;
}

WorkerRole Callers::RoleOf(const std::string& worker) const {
  const auto it = listed_.find(worker);
  return it == listed_.end() ? WorkerRole::kNone : it->second.role;
}

absl::Status Callers::CheckNotFenced(const Caller& caller, WorkerRole role) {
  int64_t highest = role == WorkerRole::kTrainer ? trainer_incarnation_ : 0;
  if (const auto it = fence_.find(caller.worker); it != fence_.end())
    highest = std::max(highest, it->second);
  if (caller.incarnation >= highest) return absl::OkStatus();

  ++counters_->fenced[RoleName(role)];
  return ErrorWith(absl::StatusCode::kAborted,
                   {.reason = "FENCED",
                    .hint = "a newer incarnation works for the job; stop",
                    .current = absl::StrCat(highest)},
                   FencedMessage(caller, highest));
}

absl::Status Callers::CheckListed(const Caller& caller, WorkerRole role) {
  const auto it = listed_.find(caller.worker);
  if (it == listed_.end() || it->second.incarnation != caller.incarnation) {
    ++counters_->denied[RoleName(role)];
    return NotListed(caller);
  }
  if (role == WorkerRole::kNone || it->second.role == role) return absl::OkStatus();

  ++counters_->denied[RoleName(role)];
  return Error(absl::StatusCode::kPermissionDenied, "WRONG_ROLE",
               absl::StrCat(caller.worker, " is a ", RoleName(it->second.role),
                            "; the call is for a ", RoleName(role)));
}

absl::Status Callers::CheckCaller(const Caller& caller, WorkerRole role) {
  SLUICE_RETURN_IF_ERROR(CheckNotFenced(caller, role));
  return CheckListed(caller, role);
}

absl::Status Callers::CheckWasListed(const Caller& caller) const {
  return fence_.contains(caller.worker) ? absl::OkStatus() : NotListed(caller);
}

bool Callers::IsFenced(const Caller& caller) const {
  const auto fence = fence_.find(caller.worker);
  return fence != fence_.end() && caller.incarnation < fence->second;
}

absl::Status Callers::CheckKnown(const Caller& caller) const {
  if (IsFenced(caller)) {
    const int64_t highest = fence_.at(caller.worker);
    return ErrorWith(absl::StatusCode::kAborted,
                     {.reason = "FENCED", .current = absl::StrCat(highest)},
                     FencedMessage(caller, highest));
  }
  const auto it = listed_.find(caller.worker);
  if (it != listed_.end() && it->second.incarnation == caller.incarnation) return absl::OkStatus();
  return NotListed(caller);
}

const Reply* Callers::FindKeptAnswer(const Caller& caller, const Id16& request) const {
  const auto it = kept_.find(caller.worker);
  if (it == kept_.end()) return nullptr;
  for (const auto& [id, reply] : it->second) {
    if (id == request) return &reply;
  }
  return nullptr;
}

void Callers::KeepAnswer(const Caller& caller, const Id16& request, Reply reply) {
  auto& kept = kept_[caller.worker];
  kept.emplace_back(request, std::move(reply));
  if (kept.size() > kAnswersKept) kept.pop_front();
}

void Callers::ForgetPrefixes() {
  for (auto& [worker, answers] : kept_) {
    for (auto& [request, reply] : answers) {
      auto* const admitted = std::get_if<AdmitAnswer>(&reply);
      if (admitted == nullptr) continue;
      for (queue::Grant& grant : admitted->grants) {
        for (Member& member : grant.members) member.prefix = 0;
      }
    }
  }
}

}  // namespace sluice::queue
