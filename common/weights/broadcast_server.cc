#include "common/weights/broadcast_server.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/collective/rendezvous_server.h"
#include "common/log/log.h"
#include "common/weights/weight_source.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

// No call is parked for longer.
constexpr absl::Duration kLongestParked = absl::Seconds(30);

absl::StatusOr<weights::v1::Manifest> ReadWhole(const WeightSource& source, const std::string& id) {
  weights::v1::Manifest manifest;
  const std::shared_ptr<const std::string> bytes = source.Find(id, {}).object;
  if (bytes != nullptr && manifest.ParseFromString(*bytes) &&
      manifest.kind() == weights::v1::Manifest::KIND_FULL)
    return manifest;
  return Error(absl::StatusCode::kNotFound, "GONE",
               "no whole version that is kept has this manifest");
}

weights::v1::JoinBroadcastResponse DeclineAlone(const std::string& worker) {
  weights::v1::JoinBroadcastResponse response;
  common::v1::WaitEdge& edge = *response.mutable_edge();
  edge.mutable_waiter()->set_kind(common::v1::NODE_KIND_DAEMON);
  edge.mutable_waiter()->set_id(worker);
  edge.mutable_on()->set_kind(common::v1::NODE_KIND_VERSION);
  edge.set_cause("too few rollouts want this version as a whole at this moment");
  edge.set_next("it is fetched by calls");
  return response;
}

}  // namespace

// Rollouts that want the same version. Only its thread uses what has no guard.
struct BroadcastServer::Group {
  std::string job, manifest;
  weights::v1::Manifest version;
  std::thread thread;
  std::string seats;  // Name of the group at the rendezvous; empty: there is none.

  // Guarded by mu_ of the server.
  std::vector<Joiner> joiners;
  std::set<std::string> expected;
  absl::Duration until;  // When it is closed at the latest.
  bool closed = false, ended = false;
  // Set while it is broadcast to.
  std::shared_ptr<LocalRendezvous> meeting;
  std::shared_ptr<Collective> collective;
};

BroadcastServer::BroadcastServer(Options options, RendezvousServer* rendezvous)
    : options_(std::move(options)), rendezvous_(rendezvous) {}
BroadcastServer::~BroadcastServer() { Stop(); }

void BroadcastServer::Join(Joiner joiner) {
  absl::StatusOr<weights::v1::Manifest> version = ReadWhole(*joiner.source, joiner.manifest);
  if (!version.ok()) return joiner.answer(version.status());

  std::list<Group> ended;
  std::optional<Joiner> former;  // Of the same worker.
  {
    MutexLock lock(&mu_);
    if (!stopping_) former = Enter(std::move(joiner), *std::move(version), &ended);
    else former = std::move(joiner);
  }
  End(std::move(ended));
  if (former.has_value())
    former->answer(absl::UnavailableError("the call came again, or the trainer shuts down"));
}

std::optional<BroadcastServer::Joiner> BroadcastServer::Enter(Joiner joiner,
                                                              weights::v1::Manifest version,
                                                              std::list<Group>* ended) {
  for (auto group = groups_.begin(); group != groups_.end();) {
    const auto next = std::next(group);
    if (group->ended) ended->splice(ended->end(), groups_, group);
    group = next;
  }

  auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& other) {
    return !other.closed && other.job == joiner.job && other.manifest == joiner.manifest;
  });
  if (group == groups_.end()) {
    group = groups_.emplace(groups_.end());
    group->job = joiner.job;
    group->manifest = joiner.manifest;
    group->version = std::move(version);
    group->until = Clock::Real()->Monotonic() + std::min(joiner.wait, kLongestParked);
    group->thread = std::thread([this, made = &*group] { Run(made); });
    pthread_setname_np(group->thread.native_handle(), "sluice-bcast");
  }
  group->expected.insert(joiner.expected.begin(), joiner.expected.end());
  changed_.NotifyAll();

  const auto same =
      std::find_if(group->joiners.begin(), group->joiners.end(),
                   [&](const Joiner& other) { return other.worker == joiner.worker; });
  if (same != group->joiners.end()) return std::exchange(*same, std::move(joiner));
  group->joiners.push_back(std::move(joiner));
  return std::nullopt;
}

void BroadcastServer::Stop() {
  std::list<Group> groups;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
    for (const Group& group : groups_) {
      if (group.meeting != nullptr) group.meeting->Close();
      if (group.collective != nullptr) group.collective->Abort();
    }
    groups.swap(groups_);  // Keeps their addresses.
  }
  End(std::move(groups));
}

void BroadcastServer::End(std::list<Group> groups) {
  for (Group& group : groups) {
    group.thread.join();
    // Not at the end of the broadcast: ranks that this one is not connected with may still look for
    // each other's addresses then.
    if (!group.seats.empty()) rendezvous_->RemoveGroup(group.seats);
  }
}

void BroadcastServer::Run(Group* group) {
  const std::vector<Joiner> members = Close(group);
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    stopping = stopping_;
  }
  if (!stopping && members.size() >= options_.least) {
    Broadcast(group, members);
  } else {
    for (const Joiner& member : members) {
      if (stopping) member.answer(absl::UnavailableError("the trainer is shutting down"));
      else member.answer(DeclineAlone(member.worker));
    }
  }
  MutexLock lock(&mu_);
  group->ended = true;
}

std::vector<BroadcastServer::Joiner> BroadcastServer::Close(Group* group) {
  std::vector<Joiner> members;
  {
    MutexLock lock(&mu_);
    const auto all_came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return std::all_of(group->expected.begin(), group->expected.end(), [&](const auto& worker) {
        return std::any_of(group->joiners.begin(), group->joiners.end(),
                           [&](const Joiner& joiner) { return joiner.worker == worker; });
      });
    };
    while (!stopping_ && !all_came()) {
      const absl::Duration left = group->until - Clock::Real()->Monotonic();
      if (left <= absl::ZeroDuration()) break;
      changed_.WaitFor(&mu_, left);
    }
    group->closed = true;
    members.swap(group->joiners);
  }

  // One that has given up would be missed by all others.
  std::erase_if(members, [](const Joiner& member) {
    const bool left = member.has_left();
    if (left) member.answer(absl::CancelledError("the caller has given up"));
    return left;
  });
  return members;
}

void BroadcastServer::Broadcast(Group* group, const std::vector<Joiner>& members) {
  const PolicyVersion version{group->version.incarnation(), group->version.version()};
  weights::v1::JoinBroadcastResponse seat;
  std::vector<std::shared_ptr<const std::string>> chunks;
  for (const weights::v1::Chunk& chunk : group->version.chunks()) {
    auto object = members.front().source->Find(chunk.sha256(), version).object;
    if (object != nullptr && object->size() != chunk.wire_bytes()) object.reset();
    if (object == nullptr) seat.add_missing(static_cast<uint32_t>(chunks.size()));
    chunks.push_back(std::move(object));
  }

  std::set<std::string> workers;
  for (const Joiner& member : members) workers.insert(member.worker);
  seat.set_group(ToHex(RandomId16()));
  group->seats = seat.group();
  const auto meeting = rendezvous_->AddGroup(group->job, seat.group(), std::move(workers));
  {
    MutexLock lock(&mu_);
    group->meeting = meeting;
    if (stopping_) meeting->Close();
  }
  const int world = static_cast<int>(members.size()) + 1;
  seat.set_world(static_cast<uint32_t>(world));
  seat.set_bucket_bytes(options_.bucket_bytes);
  for (const Joiner& member : members) {
    seat.set_rank(seat.rank() + 1);
    member.answer(seat);
  }

  const absl::Status sent = Send(group, world, meeting.get(), chunks);
  if (sent.ok()) {
    for (const auto& chunk : chunks)
      members.front().source->OnSent(chunk == nullptr ? 0 : chunk->size());
    return;
  }
  log::Warning("weights_broadcast_failed", {{"job_id", group->job},
                                            {"version", version.str()},
                                            {"rollouts", members.size()},
                                            {"error", sent}});
}

absl::Status BroadcastServer::Send(Group* group, int world, LocalRendezvous* meeting,
                                   const std::vector<std::shared_ptr<const std::string>>& chunks) {
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<Collective> collective,
                          options_.join({.rank = 0,
                                         .world = world,
                                         .host = options_.host,
                                         .ports = options_.ports,
                                         .timeout = options_.timeout,
                                         .meet = options_.timeout,
                                         .connect = options_.timeout},
                                        meeting));
  {
    MutexLock lock(&mu_);
    group->collective = collective;
    if (stopping_) collective->Abort();
  }

  uint64_t bytes = 0;
  for (const auto& chunk : chunks) bytes += chunk == nullptr ? 0 : chunk->size();
  absl::Status sent = collective->StartStream(bytes, options_.bucket_bytes);
  auto chunk = chunks.begin();
  size_t at = 0;  // In the chunk.
  while (sent.ok()) {
    absl::StatusOr<absl::Span<char>> bucket = collective->NextBucket();
    sent = bucket.status();
    if (!sent.ok() || bucket->empty()) break;
    for (size_t filled = 0; filled < bucket->size();) {
      if (*chunk == nullptr || at == (*chunk)->size()) {
        ++chunk;
        at = 0;
        continue;
      }
      const size_t count = std::min(bucket->size() - filled, (*chunk)->size() - at);
      std::memcpy(bucket->data() + filled, (*chunk)->data() + at, count);
      filled += count;
      at += count;
    }
  }

  // The sockets are closed by the last owner.
  MutexLock lock(&mu_);
  group->collective.reset();
  return sent;
}

}  // namespace sluice
