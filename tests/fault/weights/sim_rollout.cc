#include "tests/fault/weights/sim_rollout.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "common/weights/holder_plan.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice::fault {
namespace {

// As WeightSubscriber has it.
constexpr absl::Duration kTrainerBroken = absl::Seconds(1), kTrainerSilent = absl::Seconds(15);
constexpr uint64_t kTurnsOfVerification = 8;

}  // namespace

SimRollout::SimRollout(World* world, std::string name, Options options)
    : world_(*world), name_(std::move(name)), options_(std::move(options)) {
  world_.endpoints[name_] = this;
  if (options_.on_trainers_host) world_.one_host.insert(name_);
}

SimRollout::~SimRollout() {
  Kill();
  world_.endpoints.erase(name_);
}

std::shared_ptr<WeightSource> SimRollout::source() const {
  return process_ == nullptr ? nullptr : process_->relay;
}

void SimRollout::Start() {
  ++life_;
  process_ = std::make_unique<Process>();
  Process& p = *process_;
  p.heard_at = world_.timeline.Monotonic();
  p.engine = *NativeEngine::Create(SimModel(), options_.initial, {}, {},
                                   {.slots = 4, .verify_in_turns = true});
  p.relay = std::make_shared<WeightRelay>();
  p.follower = std::make_unique<VersionFollower>(FingerprintOf(options_.initial), p.relay.get(),
                                                 rpc::BackoffOptions{.jitter = 0});
  p.fetcher = std::make_unique<WeightFetcher>(
      WeightCaller{.job = kSimJob, .worker = name_, .incarnation = life_},
      options_.initial.specs());
  if (!world_.folder.empty()) {
    p.folder = std::make_shared<FileTransport>(
        world_.folder, kSimJob, [world = &world_](const std::string& path, uint64_t limit) {
          absl::StatusOr<std::string> bytes = ReadFile(path, limit);
          if (world->healed || !world->OneOf(15) || !bytes.ok() || bytes->empty()) return bytes;
          world->Inject("disk gives other bytes, or none");
          switch (world->random.Below(4)) {
            case 0: (*bytes)[world->random.Below(bytes->size())] ^= 1; break;
            case 1: bytes->resize(world->random.Below(bytes->size())); break;
            case 2: bytes = absl::NotFoundError("lost"); break;
            default: bytes = absl::UnknownError("input/output error"); break;
          }
          return bytes;
        });
  }
  p.fiber = Fiber::Start(&world_.timeline, [this](Fiber& fiber) { RunDownloads(fiber); });
  Every(absl::Milliseconds(100), absl::Seconds(1), &SimRollout::Watch);
  Every(absl::Seconds(1), absl::Seconds(3), &SimRollout::AskOthers);
  Every(absl::Milliseconds(50), absl::Seconds(1), &SimRollout::Tick);
}

void SimRollout::Kill() {
  if (process_ == nullptr) return;
  BreakWatch();
  if (process_->cancel != nullptr) process_->cancel->Trigger();
  process_->fiber->Finish();
  process_.reset();
}

void SimRollout::Every(absl::Duration least, absl::Duration most, void (SimRollout::*event)()) {
  world_.timeline.After(world_.Between(least, most), [this, life = life_, least, most, event] {
    if (process_ == nullptr || life_ != life) return;
    if (!stopped) (this->*event)();
    Every(least, most, event);
  });
}

// What the controller tells. --------------------------------------------------------------------

void SimRollout::SetSource(const std::string& trainer) {
  if (process_ == nullptr || process_->trainer == trainer) return;
  Process& p = *process_;
  p.trainer = trainer;
  BreakWatch();
  if (options_.chain || p.folder != nullptr) {
    const auto wait = p.download == nullptr ? std::nullopt : p.download->wait();
    if (p.download != nullptr && (!wait || wait->holder == kOriginId)) p.cancel->Trigger();
  } else {
    p.follower->ForgetAnnouncements();
    if (p.cancel != nullptr) p.cancel->Trigger();
  }
  p.follower->ForgetFailures();
  p.fiber->Wake();
}

void SimRollout::SetMembers(std::vector<RelayMember> members) {
  if (process_ == nullptr) return;
  process_->chain = SortIntoChain(std::move(members), absl::StrCat(kSimJob, " policy"));
  process_->fiber->Wake();
}

// What it hears. ----------------------------------------------------------------------------------

void SimRollout::BreakWatch() {
  Process& p = *process_;
  if (const auto watched = p.watched.lock(); watched != nullptr)
    watched->RemoveListener(p.listener);
  p.watched.reset();
  ++p.streams;
  p.broken_since = std::min(p.broken_since, world_.timeline.Monotonic());
}

void SimRollout::Watch() {
  Process& p = *process_;
  auto* const trainer = dynamic_cast<SimTrainer*>(world_.Find(p.trainer));
  if (trainer == nullptr || !trainer->alive()) return BreakWatch();
  const bool reached = world_.Reaches(*this, *trainer);
  if (reached) p.heard_at = world_.timeline.Monotonic();  // A beat.
  if (p.watched.lock() == trainer->source()) {
    // A stream lives on for a while, and then brings what was under way.
    if (!reached && world_.OneOf(20)) BreakWatch();
    return;
  }
  if (!reached) return;
  p.watched = trainer->source();
  p.broken_since = absl::InfiniteDuration();
  const uint64_t stream = ++p.streams;
  p.listener = trainer->source()->AddListener(
      name_, [this, trainer, stream, life = life_](const Announcement& announced) {
        if (trainer->is_dying()) return;
        Deliver(trainer, life, stream, announced);
      });
}

void SimRollout::Deliver(SimTrainer* from, int life, uint64_t stream,
                         const Announcement& announced) {
  world_.timeline.After(absl::Milliseconds(20), [=, this] {
    if (process_ == nullptr || life_ != life || process_->streams != stream) return;
    if (world_.Reaches(*this, *from)) Hear(stream, announced);
    else Deliver(from, life, stream, announced);
  });
}

void SimRollout::Hear(uint64_t stream, const Announcement& announced) {
  Process& p = *process_;
  if (stream != p.streams || stopped) return;
  p.heard_at = world_.timeline.Monotonic();
  p.heard.push_back(announced);
  const PolicyVersion version = announced.version.version;
  const absl::Status heard =
      p.follower->HearTrainer(announced.version, announced.candidate, world_.timeline.Monotonic());
  if (!heard.ok()) {
    world_.Count("announcements refused");
    Report(version, "REFUSED");
  } else if (p.download != nullptr && p.download->version().incarnation < version.incarnation) {
    p.cancel->Trigger();
  }
  p.fiber->Wake();
}

void SimRollout::HearAgain() {
  if (process_ == nullptr || process_->heard.empty()) return;
  const Announcement again = process_->heard[world_.random.Below(process_->heard.size())];
  Hear(process_->streams, again);
  world_.Inject("announcement repeated");
}

bool SimRollout::trainer_is_silent() const {
  const Process& p = *process_;
  const absl::Duration now = world_.timeline.Monotonic();
  return p.trainer.empty() || now - p.broken_since > kTrainerBroken ||
         now - p.heard_at > kTrainerSilent;
}

void SimRollout::AskOthers() {
  Process& p = *process_;
  if (!trainer_is_silent()) return;
  if (p.folder != nullptr) {
    const auto contents = p.folder->ReadContents();
    if (contents.ok()) {
      const weights::v1::Latest& latest = contents->latest();
      PublishedVersion announced{.version = rpc::FromProto(latest.version()),
                                 .manifest = latest.manifest(),
                                 .state = *Fingerprint::FromBytes(latest.state())};
      if (latest.has_hold_until()) announced.hold_until = latest.hold_until();
      p.follower->HearOther("the folder", announced, world_.timeline.Monotonic());
    }
  }
  if (options_.chain && !p.chain.empty()) {
    const RelayMember& member = p.chain[world_.random.Below(p.chain.size())];
    const Endpoint* const other = world_.Find(member.id);
    if (other != this && other != nullptr && world_.Reaches(*this, *other)) {
      std::optional<PublishedVersion> latest = other->source()->latest();
      if (latest.has_value() && other->lies && !world_.healed) {
        world_.Inject("announcement is a lie");
        latest = MakeUpVersion(&world_, *latest);
      }
      if (latest.has_value())
        p.follower->HearOther(member.id, *latest, world_.timeline.Monotonic());
    }
  }
  p.fiber->Wake();
}

void SimRollout::Report(PolicyVersion version, const std::string& phase) {
  Endpoint* const trainer = world_.Find(process_->trainer);
  if (trainer == nullptr || !world_.Reaches(*this, *trainer)) return;
  trainer->publisher()->Report({.worker = name_,
                                .version = version,
                                .phase = phase,
                                .state = process_->follower->held(),
                                .cause = "",
                                .parent = "",
                                .transport = "",
                                .why = ""});
}

// Downloads. --------------------------------------------------------------------------------------

bool SimRollout::has_holders() const {
  return !process_->trainer.empty() || options_.chain || process_->folder != nullptr;
}

void SimRollout::RunDownloads(Fiber& fiber) {
  Process& p = *process_;
  while (!fiber.finishing()) {
    const std::optional<absl::Duration> next =
        has_holders() ? p.follower->next_download() : std::nullopt;
    if (!next.has_value() || *next > world_.timeline.Monotonic() || stopped) {
      const absl::Duration soon = world_.timeline.Monotonic() + absl::Milliseconds(100);
      fiber.Park(stopped ? soon : next.value_or(absl::InfiniteDuration()));
      continue;
    }

    const VersionFollower::Download download = p.follower->Begin();
    for (const std::string& liar : download.liars)
      p.history.AddFault(liar, HolderFault::kLied, world_.timeline.Monotonic());
    Reader reader{.world = &world_, .self = this, .fiber = &fiber, .caller = name_};
    rpc::Cancel cancel;
    p.cancel = &cancel;
    ObjectFetcher::Stats stats;
    bool relayed = false;
    absl::StatusOr<StagedWeights> staged = Download(&reader, download, &cancel, &stats, &relayed);
    p.cancel = nullptr;
    if (fiber.finishing()) return;
    if (staged.ok()) {
      world_.Count("downloads");
      p.follower->OnStaged(download, stats.lister, relayed, &*staged);
      p.staged = *std::move(staged);
    } else {
      world_.Count("downloads failed");
      p.follower->OnFailed(download, staged.status(), cancel.triggered(), absl::ZeroDuration(),
                           world_.timeline.Monotonic());
      if (absl::IsDataLoss(staged.status())) Report(download.version.version, "REFUSED");
    }
    const std::optional<PublishedVersion> named = p.relay->latest();
    if (!staged.ok() || !named.has_value()) continue;
    if (named->version < p.named)
      world_.Wrong(absl::StrCat("the relay of ", name_, " named ", p.named.str(), " and now ",
                                named->version.str()));
    p.named = named->version;
  }
}

absl::StatusOr<StagedWeights> SimRollout::Download(Reader* reader,
                                                   const VersionFollower::Download& next,
                                                   rpc::Cancel* cancel, ObjectFetcher::Stats* stats,
                                                   bool* relayed) {
  Process& p = *process_;
  ObjectFetcher::Options options{.caller = p.fetcher->caller(),
                                 .version = next.version.version,
                                 .hearsay = next.speaker.has_value(),
                                 .holders = FindHolders(reader, !p.trainer.empty()),
                                 .relay = options_.chain ? p.relay.get() : nullptr,
                                 .history = &p.history,
                                 .cancel = cancel,
                                 .tell = std::launch::deferred,
                                 .clock = &world_.timeline};
  if (options.holders.empty()) return absl::UnavailableError("nobody serves the version now");
  ObjectFetcher objects(std::move(options));
  p.download = &objects;
  absl::StatusOr<StagedWeights> staged = p.fetcher->Fetch(&objects, next.version, next.from);
  p.download = nullptr;
  *stats = objects.stats();
  *relayed = objects.relay() != nullptr && staged.ok() &&
             (staged->tensors != nullptr || staged->delta != nullptr);
  return staged;
}

std::vector<ObjectFetcher::Holder> SimRollout::FindHolders(Reader* reader, bool has_trainer) {
  Process& p = *process_;
  const std::string origin(kOriginId);
  HolderFacts facts{.shared_memory = options_.on_trainers_host, .folder = p.folder != nullptr};
  facts.is_avoided = [&](const std::string& key) {
    return p.history.IsAvoided(key, world_.timeline.Monotonic());
  };
  if (has_trainer) facts.upstream.push_back(origin);
  if (options_.chain) {
    facts.holders = ListHolders(p.chain, name_, facts.is_avoided);
    if (!has_trainer) std::erase(facts.holders, origin);
    for (const RelayMember& member : p.chain) {
      if (member.id == name_) break;
      facts.upstream.push_back(member.id);
    }
  } else if (has_trainer) {
    facts.holders.push_back(origin);
  }
  const auto name_of = [&](const std::string& id) { return id == kOriginId ? p.trainer : id; };
  facts.reach_memory = [&](const std::string& id) -> absl::Status {
    const Endpoint* const holder = world_.Find(name_of(id));
    const bool here =
        holder != nullptr && holder->alive() && (id == kOriginId || world_.one_host.contains(id));
    return here ? absl::OkStatus() : absl::UnavailableError("it is on another host");
  };

  std::vector<ObjectFetcher::Holder> holders;
  for (PlannedHolder& planned : PlanHolders(facts)) {
    ObjectFetcher::Holder holder{.id = planned.id, .why = std::move(planned.why)};
    if (planned.transport->needs_folder) holder.transport = p.folder;
    else holder.transport = std::make_shared<Wire>(*planned.transport, reader, name_of(planned.id));
    holders.push_back(std::move(holder));
  }
  return holders;
}

// The engine. -------------------------------------------------------------------------------------

void SimRollout::Tick() {
  Process& p = *process_;
  if (p.staged.has_value()) Activate();
  if (p.engine->version() == PolicyVersion()) return;
  Check("before a step");
  if (!p.engine->damaged()) {
    while (p.engine->Stats().running + p.engine->Stats().waiting < 2) {
      const auto token = static_cast<int32_t>(world_.random.Below(30));
      const Request request{
          .id = ++p.requests,
          .prompt = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{3, token}),
          .seed = p.requests,
          .sampling = {.max_tokens = static_cast<uint32_t>(5 + world_.random.Below(20))}};
      SLUICE_CHECK(p.engine->AddRequest(request).ok());
    }
    const absl::StatusOr<StepEvents> events = p.engine->Step();
    if (!events.ok()) return world_.Wrong(events.status().ToString());
    for (const TokenEvent& event : events->tokens) {
      world_.Count(p.flipped.has_value() ? "tokens while a bit was flipped" : "tokens");
      if (event.version != p.engine->version())
        world_.Wrong(absl::StrCat(name_, " has stamped a token with ", event.version.str(),
                                  ", but computes with ", p.engine->version().str()));
    }
  }
  if (!p.engine->damaged() && world_.OneOf(4)) {
    if (p.engine->VerifyPart().has_value()) {
      world_.Count("damage found");
      p.flipped.reset();
      p.follower->OnDamaged();
      p.active = p.named = {};
      Report(p.engine->version(), "REFUSED");
      p.fiber->Wake();
    }
  }
  Check("after a step");
}

void SimRollout::Activate() {
  Process& p = *process_;
  StagedWeights staged = *std::exchange(p.staged, std::nullopt);
  const bool whole = staged.tensors != nullptr;
  if (!world_.healed && whole && world_.OneOf(15)) {
    auto& tensors = const_cast<TensorSet&>(*staged.tensors);
    tensors.buffer()[world_.random.Below(tensors.buffer().size())] ^= std::byte{1};
    world_.Inject("bit flipped on the host");
  }
  if (world_.OneOf(2)) p.engine->PrepareWeights(&staged);
  const absl::StatusOr<Activation> activation =
      p.engine->ActivateWeights(staged, world_.OneOf(2) ? KvPolicy::kKeep : KvPolicy::kRecompute);
  if (!activation.ok()) return world_.Wrong(activation.status().ToString());
  const PolicyVersion version = staged.version;
  if (!activation->accepted) {
    world_.Count("activations refused");
    if (activation->damage.has_value()) {
      world_.Count("damage found");
      p.flipped.reset();
      p.follower->OnDamaged();
      p.active = p.named = {};
    }
    // It may be a delta whose download ended after the damage was found.
    if (p.engine->damaged()) p.named = {};
    p.follower->OnRefused(version, world_.timeline.Monotonic());
    Report(version, "REFUSED");
    p.fiber->Wake();
    return;
  }

  world_.Count("activations");
  if (!world_.model.published.contains(version))
    world_.Wrong(absl::StrCat(name_, " activated ", version.str(), ", which nobody published"));
  if (world_.model.withdrawn.contains(version) && !world_.model.canaries[version].contains(name_))
    world_.Wrong(absl::StrCat(name_, " activated ", version.str(), ", which was withdrawn"));
  if (version < p.active)
    world_.Wrong(absl::StrCat(name_, " went from ", p.active.str(), " to ", version.str()));
  p.active = version;
  if (whole) p.flipped.reset();
  else if (p.flipped.has_value() && ++*p.flipped > kTurnsOfVerification)
    world_.Wrong(absl::StrCat(name_, " has not found a flipped bit in ", kTurnsOfVerification,
                              " activations"));
  p.follower->OnActivated(version, staged.state);
  Report(version, "ACTIVE");
  p.fiber->Wake();
}

void SimRollout::Check(const char* when) {
  const Process& p = *process_;
  if (p.engine->damaged() || p.flipped.has_value()) return;
  const auto it = world_.model.published.find(p.engine->version());
  if (it == world_.model.published.end()) return;  // It was told already.
  world_.Count("checks of all weights");
  const absl::StatusOr<TensorSet> held = p.engine->weights().Unpack();
  if (!held.ok() || held->buffer() != it->second.buffer())
    world_.Wrong(absl::StrCat(name_, " holds other weights than those of ",
                              p.engine->version().str(), " ", when));
}

void SimRollout::FlipWeights() {
  if (process_ == nullptr || process_->flipped.has_value() || process_->engine->damaged() ||
      process_->engine->version() == PolicyVersion())
    return;
  process_->engine->FlipBit();
  process_->flipped = 0;
  world_.Inject("bit flipped in the engine's memory");
}

void SimRollout::FlipRelay() {
  if (process_ == nullptr) return;
  const std::vector<WeightEdge> edges = process_->relay->edges();
  if (edges.empty()) return;
  const WeightEdge& edge = edges[world_.random.Below(edges.size())];
  const auto manifest = process_->relay->Find(edge.manifest, edge.version.version).object;
  weights::v1::Manifest parsed;
  if (manifest == nullptr || !parsed.ParseFromString(*manifest)) return;
  std::vector<std::string> ids = {edge.manifest};
  for (const weights::v1::Chunk& chunk : parsed.chunks()) ids.push_back(chunk.sha256());
  const auto object =
      process_->relay->Find(ids[world_.random.Below(ids.size())], edge.version.version).object;
  if (object == nullptr || object->empty()) return;
  const_cast<std::string&>(*object)[world_.random.Below(object->size())] ^= 1;
  world_.relays_damaged = true;
  world_.Inject("bit flipped in a relay's memory");
}

}  // namespace sluice::fault
