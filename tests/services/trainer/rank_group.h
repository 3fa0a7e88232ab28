#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/collective/c10d_collective.h"
#include "services/trainer/core/trainer.h"

namespace sluice::trainer {

// The ranks of one trainer in this process. The test uses rank 0; the others have a thread each.
class RankGroup {
 public:
  // `settings_of` gives the settings of each rank. `teacher` outlives the group. With a
  // `checkpoint_dir`, the ranks write their parts of checkpoints in it.
  RankGroup(int world, const ModelConfig& config,
            const std::function<Settings(int rank)>& settings_of,
            const ModelConfig* teacher = nullptr, const std::string& checkpoint_dir = "")
      : collectives_(world), trainers_(world), ends_(world) {
    // A rank may write to one that has left. Daemons ignore the signal too.
    std::signal(SIGPIPE, SIG_IGN);
    for (int rank = world - 1; rank >= 0; --rank) {
      const auto start = [this, rank, world, config, teacher, checkpoint_dir,
                          settings = settings_of(rank)] {
        absl::StatusOr<std::unique_ptr<Collective>> collective =
            JoinC10d({.rank = rank, .world = world, .timeout = absl::Seconds(60)}, &rendezvous_);
        ASSERT_TRUE(collective.ok()) << collective.status();
        std::shared_ptr<Collective> snapshots;
        if (settings.shard != Shard::kNone) {
          PrefixedRendezvous second(&rendezvous_, "snapshots/");
          absl::StatusOr<std::unique_ptr<Collective>> joined =
              JoinC10d({.rank = rank, .world = world, .timeout = absl::Seconds(60)}, &second);
          ASSERT_TRUE(joined.ok()) << joined.status();
          snapshots = *std::move(joined);
        }
        absl::StatusOr<std::unique_ptr<Trainer>> trainer =
            Trainer::Create(settings, config, Clock::Real(), collective->get(), snapshots, teacher);
        ASSERT_TRUE(trainer.ok()) << trainer.status();
        trainers_[rank] = *std::move(trainer);
        if (!checkpoint_dir.empty()) trainers_[rank]->SetCheckpointDir(checkpoint_dir);
        collectives_[rank] = collective->get();
        if (rank > 0) ends_[rank] = trainers_[rank]->Follow([](bool) {});
        else first_ = *std::move(collective);
      };
      if (rank > 0) threads_.emplace_back(start);
      else start();
    }
  }
  RankGroup(int world, const ModelConfig& config, const Settings& settings,
            const ModelConfig* teacher = nullptr, const std::string& checkpoint_dir = "")
      : RankGroup(world, config, [&](int) { return settings; }, teacher, checkpoint_dir) {}
  ~RankGroup() { Stop(); }

  Trainer& operator*() { return *trainers_[0]; }
  Trainer* operator->() { return trainers_[0].get(); }

  // Ends rank 0's part of the group; the other ranks end with it. Their weights are still there.
  void Stop() {
    first_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Makes a rank other than 0 leave the group at once, in the middle of what it does. Call it once,
  // after rank 0 has been told to do something.
  void Leave(int rank) { collectives_[rank].load()->Abort(); }
  Trainer& of_rank(int rank) { return *trainers_[rank]; }    // After Stop().
  const absl::Status& end(int rank) { return ends_[rank]; }  // The same.

 private:
  LocalRendezvous rendezvous_;
  std::unique_ptr<Collective> first_;
  std::vector<std::atomic<Collective*>> collectives_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::vector<absl::Status> ends_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::trainer
