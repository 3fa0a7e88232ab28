#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/weights/fetcher.h"
#include "common/weights/file_transport.h"
#include "common/weights/relay.h"
#include "common/weights/relay_chain.h"
#include "common/weights/version_follower.h"
#include "services/rollout/core/engine/native/native_engine.h"
#include "tests/fault/weights/sim_trainer.h"
#include "tests/fault/weights/wire.h"
#include "tests/fault/weights/world.h"

namespace sluice::fault {

// A rollout: a real engine, follower, fetcher and relay. Between the steps of the engine a checker
// compares its weights to the model.
class SimRollout : public Endpoint {
 public:
  struct Options {
    bool chain = false;
    bool on_trainers_host = false;  // Shares memory with the trainer and others of its kind.
    TensorSet initial;              // Of the model directory.
  };
  SimRollout(World* world, std::string name, Options options);
  ~SimRollout() override;

  const std::string& name() const override { return name_; }
  std::shared_ptr<WeightSource> source() const override;
  int life() const override { return life_; }

  // A new process.
  void Start();
  void Kill();
  // The controller tells where the trainer is ("": nowhere) and who else there is.
  void SetSource(const std::string& trainer);
  void SetMembers(std::vector<RelayMember> members);
  // Ends the stream of announcements; a new one is opened soon.
  void BreakWatch();
  // Hears an older announcement of its trainer again.
  void HearAgain();
  // Flips a bit of the engine's weights, or of an object that the relay keeps.
  void FlipWeights();
  void FlipRelay();

  // The highest version that a trainer announced to it.
  PolicyVersion heard_of() const {
    return alive() ? process_->follower->newest() : PolicyVersion();
  }
  PolicyVersion version() const { return alive() ? process_->engine->version() : PolicyVersion(); }

 private:
  // All that a kill takes away.
  struct Process {
    std::unique_ptr<NativeEngine> engine;
    std::shared_ptr<WeightRelay> relay;
    std::unique_ptr<VersionFollower> follower;
    std::unique_ptr<WeightFetcher> fetcher;
    std::shared_ptr<FileTransport> folder;
    HolderHistory history;
    std::shared_ptr<Fiber> fiber;

    std::string trainer;  // Its name; empty: none.
    std::vector<RelayMember> chain;
    rpc::Cancel* cancel = nullptr;  // Of the download that runs.
    ObjectFetcher* download = nullptr;
    std::optional<StagedWeights> staged;  // Waits for the next step.

    // The stream of announcements.
    std::weak_ptr<WeightSource> watched;
    std::string watched_name;
    uint64_t listener = 0, streams = 0;
    std::vector<Announcement> heard;
    absl::Duration broken_since = absl::InfiniteDuration();  // Since when; it is not.
    absl::Duration heard_at;

    PolicyVersion active;  // Highest that was activated since the weights were damaged.
    uint64_t requests = 0;
    std::optional<uint64_t> flipped;  // Activations since a bit flipped at rest.
    PolicyVersion named;              // By the relay, since the weights were damaged.
  };

  // Runs `event` again and again while this process lives, with random pauses.
  void Every(absl::Duration least, absl::Duration most, void (SimRollout::*event)());
  void Watch();      // Opens the stream if there is none.
  void AskOthers();  // For the newest version while the trainer is silent.
  void Tick();       // A step of the engine.
  // Brings an announcement as soon as the trainer can be reached.
  void Deliver(SimTrainer* from, int life, uint64_t stream, const Announcement& announced);
  void Hear(uint64_t stream, const Announcement& announced);
  void RunDownloads(Fiber& fiber);
  absl::StatusOr<StagedWeights> Download(Reader* reader, const VersionFollower::Download& next,
                                         rpc::Cancel* cancel, ObjectFetcher::Stats* stats,
                                         bool* relayed);
  std::vector<ObjectFetcher::Holder> FindHolders(Reader* reader, bool has_trainer);
  void Activate();
  void Check(const char* when);
  void Report(PolicyVersion version, const std::string& phase);
  bool trainer_is_silent() const;
  bool has_holders() const;

  World& world_;
  const std::string name_;
  const Options options_;
  int life_ = 0;
  std::unique_ptr<Process> process_;  // Null: dead.
};

}  // namespace sluice::fault
