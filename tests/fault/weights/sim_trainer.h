#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/checkpoint/tensor_set.h"
#include "common/weights/publisher.h"
#include "common/weights/weight_folder.h"
#include "tests/fault/weights/world.h"

namespace sluice::fault {

// A trainer's state on a disk that survives it.
struct SimCheckpoint {
  int64_t number = 0;
  TensorSet weights;
};

// One incarnation of the trainer: a real publisher, and what decides what it publishes. It changes
// weights at random instead of training them.
class SimTrainer : public Endpoint {
 public:
  // It goes on from `from`, and replays up to `replay_end`, the newest number that was published
  // before.
  SimTrainer(World* world, int64_t incarnation, SimCheckpoint from, int64_t replay_end);
  ~SimTrainer() override;

  const std::string& name() const override { return name_; }
  std::shared_ptr<WeightSource> source() const override { return publisher_; }
  WeightPublisher* publisher() const override { return publisher_.get(); }
  int life() const override { return 1; }
  int64_t incarnation() const { return incarnation_; }
  // No listener hears what it announces while it dies.
  bool is_dying() const { return dying_; }

  // Publishes, or goes on with a trial. Returns false if it died of it, or has to go back.
  bool Step();
  // Publishes other weights as a whole.
  void PublishLast();
  void Kill();

  const SimCheckpoint& checkpoint() const { return checkpoint_; }
  int64_t highest() const { return highest_; }  // Number that was published.
  std::optional<PublishedVersion> latest() const;

 private:
  void ChangeWeights();
  // Publishes, or stages, `weights_` as the next version.
  bool Publish(bool on_trial);
  bool GoOnWithTrial();
  void OnStored();
  // Flips a bit in an object that it keeps.
  void DamageObject();

  World& world_;
  const int64_t incarnation_;
  const std::string name_;
  std::shared_ptr<WeightPublisher> publisher_;  // Null: dead.
  std::optional<WeightFolderWriter> writer_;
  TensorSet weights_, before_;
  int64_t number_, replay_end_, highest_;
  SimCheckpoint checkpoint_;
  std::optional<PublishedVersion> trial_;
  std::string canary_;
  bool dying_ = false;
};

}  // namespace sluice::fault
