#include "services/controller/core/fleet.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/controller/core/names.h"

namespace sluice::controller {

absl::string_view LivenessName(Liveness liveness) {
  switch (liveness) {
    case Liveness::kLive: return "up";
    case Liveness::kSuspect: return "suspect";
    case Liveness::kLost: return "lost";
  }
  return "";
}

absl::string_view StateText(const Daemon& daemon) {
  return daemon.left() ? "left" : LivenessName(daemon.liveness);
}

void Fleet::Restore(Instant now, DaemonRecord record, bool working) {
  back_since_ = now.mono;
  Daemon daemon;
  daemon.liveness = working ? Liveness::kSuspect : Liveness::kLost;
  daemon.last_heard = daemon.broken_at = daemon.lost_at = now.mono;
  daemon.record = std::move(record);
  const std::string id = daemon.record.id;
  daemons_.emplace(id, std::move(daemon));
}

absl::StatusOr<RegisterOutput> Fleet::Register(Instant now, const RegisterInput& input) {
  const DaemonRecord& reported = input.daemon;
  // The floor is common to all daemons, so a wild number must not make theirs overflow.
  const int64_t had = std::clamp<int64_t>(reported.incarnation, 0, int64_t{1} << 62);
  SLUICE_RETURN_IF_ERROR(CheckName("daemon id", reported.id));
  if (reported.protocol_min > kProtocol || reported.protocol_max < kProtocol) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {"PROTOCOL", "SLUICE-CTL-0001",
                      "run builds whose protocols overlap; upgrade the controller first"},
                     absl::StrCat(reported.id, " speaks protocols ", reported.protocol_min, " to ",
                                  reported.protocol_max, ", and this controller speaks ", kProtocol,
                                  " to ", kProtocol));
  }

  if (daemons_.size() >= kMostDaemons && Find(reported.id) == nullptr) {
    return ErrorWith(
        absl::StatusCode::kResourceExhausted,
        {.reason = "DAEMONS",
         .catalogue = "SLUICE-CTL-0032",
         .hint =
             "see `sluice daemon list`: end what starts daemons under ever new ids, and undrain "
             "lost daemons that do not come back; a lost one is forgotten after an hour",
         .retry_after = absl::Seconds(10)},
        absl::StrCat("daemon ", reported.id, " cannot register: ", kMostDaemons,
                     " daemons are registered, lost ones included, and there may be no more"));
  }

  const auto [it, created] = daemons_.try_emplace(reported.id);
  Daemon& daemon = it->second;
  RegisterOutput output;
  if (created) {
    // No incarnation above the floor was ever forgotten, so the daemon keeps what it had before the
    // store was lost.
    output.incarnation = had > floor_ ? had : floor_ + 1;
  } else if (daemon.record.role != reported.role) {
    return ErrorWith(absl::StatusCode::kAlreadyExists,
                     {"CONFLICT", "SLUICE-CTL-0002", "give each daemon its own --id"},
                     absl::StrCat("daemon ", reported.id, " is a ", RoleName(daemon.record.role),
                                  ", not a ", RoleName(reported.role)));
  } else if (daemon.record.boot == reported.boot) {
    output.repeat = true;
    output.incarnation = daemon.record.incarnation;
  } else {
    // Two live processes must not share an id: the new one waits until the old one is silent.
    if (daemon.stream != 0 && now.mono - daemon.last_heard < kSuspectAfter) {
      return ErrorWith(absl::StatusCode::kFailedPrecondition,
                       {"NOT_YET", "SLUICE-CTL-0003",
                        "stop the other process, or give this one another --id", absl::Seconds(1)},
                       absl::StrCat("another process that calls itself ", reported.id,
                                    " still sends heartbeats"));
    }
    if (daemon.present()) Lose(now, daemon, "it was started anew");
    output.incarnation = std::max(had, daemon.record.incarnation) + 1;
  }

  const uint64_t events = output.repeat ? daemon.record.events_stored : 0;
  const bool drained = daemon.record.drained;
  if (!output.repeat) daemon = Daemon{};
  daemon.record = reported;
  daemon.record.incarnation = output.incarnation;
  daemon.record.events_stored = events;
  daemon.record.drained = drained;
  daemon.generation_applied = input.generation;

  // Until its first heartbeat the daemon is suspect: it keeps its work but gets no new work.
  if (daemon.stream == 0) {
    daemon.liveness = Liveness::kSuspect;
    daemon.last_heard = daemon.broken_at = now.mono;
  }
  return output;
}

absl::StatusOr<Daemon*> Fleet::Heartbeat(Instant now, const std::string& id, int64_t incarnation,
                                         uint64_t stream) {
  Daemon* daemon = Find(id);
  if (daemon == nullptr) {
    return Error(absl::StatusCode::kNotFound, "GONE",
                 absl::StrCat("daemon ", id, " is not registered; it must register again"));
  }
  if (incarnation != daemon->record.incarnation) {
    return Error(absl::StatusCode::kAborted, "FENCED",
                 absl::StrCat("daemon ", id, " calls as incarnation ", incarnation,
                              ", but its present incarnation is ", daemon->record.incarnation,
                              ": another process has taken over its id"));
  }

  // A lost daemon that has registered again is present already.
  const bool was_lost = std::exchange(daemon->was_lost, false) || !daemon->present();
  daemon->stream = stream;
  daemon->last_heard = now.mono;
  daemon->liveness = Liveness::kLive;
  daemon->ever_heard = true;
  if (was_lost) listener_.on_back(now, *daemon);
  return daemon;
}

void Fleet::StreamClosed(Instant now, const std::string& id, uint64_t stream) {
  Daemon* daemon = Find(id);
  if (daemon == nullptr || daemon->stream != stream) return;
  daemon->stream = 0;
  daemon->broken_at = now.mono;
  if (!daemon->present()) return;
  daemon->liveness = Liveness::kSuspect;
  if (daemon->draining) Lose(now, *daemon, "it drained and left");
}

void Fleet::OnAway(Instant now, absl::Duration away) {
  back_since_ = now.mono;
  for (auto& [id, daemon] : daemons_) {
    daemon.last_heard += away;
    daemon.broken_at += away;
    daemon.lost_at += away;
  }
}

void Fleet::Tick(Instant now) {
  const bool grace = now.mono - back_since_ < kGrace;
  for (auto& [id, daemon] : daemons_) {
    if (!daemon.present()) continue;
    const absl::Duration silence = now.mono - daemon.last_heard;
    const bool broken = daemon.stream == 0;
    if (broken || silence >= kSuspectAfter) daemon.liveness = Liveness::kSuspect;
    if (grace) continue;
    if (silence >= kLostAfter) {
      Lose(now, daemon, absl::StrCat("it was silent for ", DurationText(silence)));
    } else if (broken && daemon.ever_heard && now.mono - daemon.broken_at >= kLostAfterBreak) {
      Lose(now, daemon, "its connection broke and it did not come back");
    }
  }
}

std::vector<std::string> Fleet::ListForgettable(Instant now) const {
  std::vector<std::string> ids;
  for (const auto& [id, daemon] : daemons_) {
    if (!daemon.present() && !daemon.record.drained && now.mono - daemon.lost_at >= kForgetAfter)
      ids.push_back(id);
  }
  return ids;
}

bool Fleet::Forget(const std::string& id) {
  const auto it = daemons_.find(id);
  SLUICE_CHECK(it != daemons_.end() && !it->second.present());
  const int64_t incarnation = it->second.record.incarnation;
  daemons_.erase(it);
  if (incarnation <= floor_) return false;
  floor_ = incarnation;
  return true;
}

Daemon* Fleet::Find(const std::string& id) {
  const auto it = daemons_.find(id);
  return it == daemons_.end() ? nullptr : &it->second;
}

void Fleet::Lose(Instant now, Daemon& daemon, const std::string& cause) {
  daemon.liveness = Liveness::kLost;
  daemon.was_lost = true;
  daemon.lost_at = now.mono;
  daemon.record.left = daemon.draining;
  daemon.progress.clear();
  listener_.on_lost(now, daemon, daemon.record.incarnation, cause);
}

}  // namespace sluice::controller
