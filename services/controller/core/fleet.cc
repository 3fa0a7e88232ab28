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

void Fleet::Restore(Instant now, DaemonRecord record, bool working) {
  back_since_ = now.mono;
  Daemon daemon;
  daemon.liveness = working ? Liveness::kSuspect : Liveness::kLost;
  daemon.last_heard = daemon.broken_at = now.mono;
  daemon.record = std::move(record);
  const std::string id = daemon.record.id;
  daemons_.emplace(id, std::move(daemon));
}

absl::StatusOr<RegisterOutput> Fleet::Register(Instant now, const RegisterInput& input) {
  const DaemonRecord& reported = input.daemon;
  SLUICE_RETURN_IF_ERROR(CheckName("daemon id", reported.id));
  if (reported.protocol_min > kProtocol || reported.protocol_max < kProtocol) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {"PROTOCOL", "SLUICE-CTL-0001",
                      "run builds whose protocols overlap; upgrade the controller first"},
                     absl::StrCat(reported.id, " speaks protocols ", reported.protocol_min, " to ",
                                  reported.protocol_max, ", and this controller speaks ", kProtocol,
                                  " to ", kProtocol));
  }

  const auto [it, created] = daemons_.try_emplace(reported.id);
  Daemon& daemon = it->second;
  RegisterOutput output;
  if (created) {
    output.incarnation = std::max<int64_t>(reported.incarnation, 1);
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
    output.incarnation = std::max(reported.incarnation, daemon.record.incarnation) + 1;
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

Daemon* Fleet::Find(const std::string& id) {
  const auto it = daemons_.find(id);
  return it == daemons_.end() ? nullptr : &it->second;
}

void Fleet::Lose(Instant now, Daemon& daemon, const std::string& cause) {
  daemon.liveness = Liveness::kLost;
  daemon.was_lost = true;
  daemon.progress.clear();
  listener_.on_lost(now, daemon, daemon.record.incarnation, cause);
}

}  // namespace sluice::controller
