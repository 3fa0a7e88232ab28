#include "tests/fault/weights/sim_trainer.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice::fault {
namespace {

constexpr const char* kFolderPoints[] = {"weights.dir.object", "weights.dir.latest",
                                         "weights.dir.free"};

}  // namespace

SimTrainer::SimTrainer(World* world, int64_t incarnation, SimCheckpoint from, int64_t replay_end)
    : world_(*world),
      incarnation_(incarnation),
      name_(absl::StrCat("trainer ", incarnation)),
      publisher_(std::make_shared<WeightPublisher>(
          WeightPublisher::Options{
              .job = kSimJob,
              .retain_versions = static_cast<int>(2 + world->random.Below(3)),
              .chunk_target_bytes = uint64_t{1024} << world->random.Below(3),
              .encoding = world->OneOf(6) ? WeightEncoding::kFull : WeightEncoding::kAuto,
              .on_stored = [this] { OnStored(); }},
          &world->timeline)),
      weights_(from.weights),
      before_(from.weights),
      number_(from.number - 1),  // The first version is what it was restored to.
      replay_end_(replay_end),
      highest_(replay_end),
      checkpoint_(std::move(from)) {
  if (!world_.folder.empty()) writer_.emplace(world_.folder, kSimJob, incarnation);
  world_.endpoints[name_] = this;
}

SimTrainer::~SimTrainer() {
  Kill();
  world_.endpoints.erase(name_);
}

void SimTrainer::Kill() {
  dying_ = true;
  publisher_ = nullptr;
}

std::optional<PublishedVersion> SimTrainer::latest() const {
  return publisher_ == nullptr ? std::nullopt : publisher_->latest();
}

void SimTrainer::ChangeWeights() {
  TensorSet next = weights_;
  SplitMix64& random = world_.random;
  switch (random.Below(7)) {
    case 0: break;  // A skipped step.
    case 1:         // All elements.
      for (size_t i = 0; i < next.size(); ++i) {
        for (uint32_t& x : next.as<uint32_t>(i)) x ^= static_cast<uint32_t>(1 + random.Below(1000));
      }
      break;
    case 2: next = before_; break;  // As they were.
    default:
      for (uint64_t n = 1 + random.Below(60); n > 0; --n) {
        const absl::Span<uint32_t> elements =
            next.as<uint32_t>(static_cast<size_t>(random.Below(next.size())));
        elements[random.Below(elements.size())] ^= static_cast<uint32_t>(1 + random.Below(1000));
      }
  }
  before_ = std::exchange(weights_, std::move(next));
}

bool SimTrainer::Step() {
  if (trial_.has_value()) return GoOnWithTrial();
  // Before the first version, nothing was trained since the checkpoint.
  if (number_ >= checkpoint_.number) {
    // A replay trains the same; after a rollback something else may come.
    const auto again = world_.model.published.find({incarnation_ - 1, number_ + 1});
    if (number_ < replay_end_ && again != world_.model.published.end() && !world_.OneOf(4))
      weights_ = again->second;
    else ChangeWeights();
  }
  const bool replaying = number_ + 1 < replay_end_;
  const bool on_trial = publisher_->latest().has_value() && !replaying && world_.OneOf(6);
  return Publish(on_trial);
}

bool SimTrainer::Publish(bool on_trial) {
  const PolicyVersion version{incarnation_, ++number_};
  world_.model.published[version] = weights_;
  if (!world_.healed && world_.OneOf(12)) DamageObject();
  if (on_trial) {
    const absl::StatusOr<PublishedVersion> staged = publisher_->Stage(weights_, version);
    if (!staged.ok()) world_.Wrong(absl::StrCat(name_, " stages: ", staged.status().ToString()));
    if (!staged.ok()) return false;
    trial_ = *staged;
    canary_.clear();
    return true;
  }
  const std::optional<int64_t> hold_until =
      number_ < replay_end_ ? std::optional(replay_end_) : std::nullopt;
  const absl::StatusOr<PublishedVersion> made =
      publisher_->Publish(weights_, version, "", hold_until);
  if (!made.ok()) {
    world_.Wrong(absl::StrCat(name_, " publishes: ", made.status().ToString()));
    return false;
  }
  highest_ = std::max(highest_, number_);
  world_.Count("versions published");
  if (dying_) return false;
  if (world_.OneOf(3)) checkpoint_ = {number_, weights_};
  return true;
}

// A canary tries it for a while. It is promoted, or the trainer goes back.
bool SimTrainer::GoOnWithTrial() {
  const std::set<std::string> listeners = publisher_->listeners();
  if ((canary_.empty() || !listeners.contains(canary_)) && !listeners.empty()) {
    canary_ = *std::next(listeners.begin(),
                         static_cast<std::ptrdiff_t>(world_.random.Below(listeners.size())));
    world_.model.canaries[trial_->version].insert(canary_);
    publisher_->Try(*trial_, canary_);
    world_.Count("trials");
    return true;
  }
  if (!world_.OneOf(2)) return true;
  if (!world_.healed && world_.OneOf(3)) {
    world_.Count("versions withdrawn");
    world_.model.withdrawn.insert(trial_->version);
    publisher_->Withdraw();
    return false;
  }
  publisher_->Promote(*std::exchange(trial_, std::nullopt));
  highest_ = std::max(highest_, number_);
  world_.Count("versions published");
  return !dying_;
}

void SimTrainer::OnStored() {
  if (!writer_.has_value()) return;
  const std::optional<WeightPublisher::Snapshot> kept = publisher_->TakeSnapshot();
  const bool dies = kHasFailpoints && !world_.healed && world_.OneOf(10);
  const char* const point = kFolderPoints[world_.random.Below(std::size(kFolderPoints))];
  if (dies)
    SLUICE_CHECK(ArmFailpoint(point, "error", static_cast<int>(1 + world_.random.Below(4))).ok());
  const absl::Status written = writer_->Write(*kept);
  if (dies) SLUICE_CHECK(ArmFailpoint(point, "", 1).ok());
  if (dies && !written.ok()) {
    world_.Inject(absl::StrCat("trainer dies at ", point));
    dying_ = true;
  }

  const absl::StatusOr<weights::v1::FolderContents> read = ReadWeightFolder(world_.folder, kSimJob);
  if (!read.ok()) return;  // Damaged, and replaced by the next version.
  const PolicyVersion version = rpc::FromProto(read->latest().version());
  if (version < world_.in_folder)
    world_.Wrong(absl::StrCat("`latest` of the folder fell from ", world_.in_folder.str(), " to ",
                              version.str()));
  world_.in_folder = version;
}

void SimTrainer::DamageObject() {
  const std::optional<WeightPublisher::Snapshot> kept = publisher_->TakeSnapshot();
  if (!kept.has_value()) return;
  const auto it = std::next(kept->objects.begin(),
                            static_cast<std::ptrdiff_t>(world_.random.Below(kept->objects.size())));
  const_cast<std::string&>(*it->second)[world_.random.Below(it->second->size())] ^= 1;
  world_.Inject("bit flipped in the trainer's memory");
}

void SimTrainer::PublishLast() {
  trial_.reset();
  for (size_t i = 0; i < weights_.size(); ++i) {
    for (uint32_t& x : weights_.as<uint32_t>(i))
      x ^= static_cast<uint32_t>(1 + world_.random.Below(100'000));
  }
  number_ = std::max(number_, replay_end_);
  Publish(/*on_trial=*/false);
}

}  // namespace sluice::fault
