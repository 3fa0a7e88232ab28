#include "tests/fault/weights/fleet_sim.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "tests/fault/weights/sim_rollout.h"
#include "tests/fault/weights/sim_trainer.h"

namespace sluice::fault {
namespace {

// In which every rollout must come to the last version, once all faults have ended. A stream to a
// holder that hangs lasts a minute at most, and the back-off is seconds.
constexpr absl::Duration kRecovers = absl::Minutes(5);

class FleetSim {
 public:
  FleetSim(uint64_t seed, const std::string& dir) : world_(seed) {
    if (world_.OneOf(3)) world_.folder = dir;
    chain_ = !world_.OneOf(3);
    initial_ = *InitWeights(SimModel(), seed);
    checkpoint_ = {0, initial_};
  }

  Findings Run() {
    const size_t rollouts = 2 + world_.random.Below(3);
    for (size_t i = 0; i < rollouts; ++i) AddRollout();
    StartTrainer();
    for (const auto& rollout : rollouts_) StartRollout(rollout.get());
    Inject();
    const absl::Duration end = world_.Between(absl::Seconds(15), absl::Seconds(50));
    world_.timeline.Run(end, [] { return false; });
    Heal();
    AwaitLast();
    rollouts_.clear();
    trainers_.clear();
    return std::move(world_.findings);
  }

 private:
  absl::Duration now() { return world_.timeline.Monotonic(); }
  SimRollout* AnyRollout() { return rollouts_[world_.random.Below(rollouts_.size())].get(); }
  SimTrainer* trainer() { return trainers_.back().get(); }

  void AddRollout() {
    rollouts_.push_back(std::make_unique<SimRollout>(
        &world_, absl::StrCat("rollout-", rollouts_.size()),
        SimRollout::Options{
            .chain = chain_, .on_trainers_host = world_.OneOf(5), .initial = initial_}));
  }

  // The controller. -------------------------------------------------------------------------------

  void StartRollout(SimRollout* rollout) {
    rollout->Start();
    rollout->stopped = false;
    Tell();
  }

  void StartTrainer() {
    if (!trainers_.empty()) {
      checkpoint_ = trainer()->checkpoint();
      // After a rollback nothing is replayed.
      replay_end_ = world_.OneOf(3) ? 0 : std::max(replay_end_, trainer()->highest());
    }
    trainers_.push_back(std::make_unique<SimTrainer>(
        &world_, static_cast<int64_t>(trainers_.size()) + 1, checkpoint_, replay_end_));
    StepTrainer(trainer());
    Tell();
  }

  // Tells each rollout, some late, who is there.
  void Tell() {
    std::vector<RelayMember> members;
    for (const auto& rollout : rollouts_) {
      if (rollout->alive()) members.push_back({rollout->name(), rollout->name()});
    }
    const std::string source = trainer()->alive() ? trainer()->name() : "";
    for (const auto& rollout : rollouts_) {
      const absl::Duration late = world_.OneOf(4) ? absl::Seconds(8) : absl::Milliseconds(300);
      const uint64_t news = ++told_;
      world_.timeline.After(
          world_.healed ? absl::Milliseconds(1) : world_.Between(absl::Milliseconds(1), late),
          [this, rollout = rollout.get(), source, members, news] {
            uint64_t& newest = news_of_[rollout->name()];
            if (news < newest) return;
            newest = news;
            rollout->SetSource(source);
            rollout->SetMembers(members);
          });
    }
  }

  // A trainer publishes again and again, even if it was replaced.
  void StepTrainer(SimTrainer* publishes) {
    world_.timeline.After(world_.Between(absl::Milliseconds(100), absl::Seconds(3)),
                          [this, publishes] {
                            if (!publishes->alive() || world_.healed) return;
                            if (!publishes->stopped && !publishes->Step()) {
                              world_.Count("trainers that ended");
                              return ReplaceTrainer(publishes);
                            }
                            StepTrainer(publishes);
                          });
  }

  void ReplaceTrainer(SimTrainer* dead) {
    dead->Kill();
    if (dead != trainer()) return;
    Tell();
    world_.timeline.After(world_.Between(absl::Milliseconds(300), absl::Seconds(5)), [this, dead] {
      if (dead == trainer() && !world_.healed) StartTrainer();
    });
  }

  // Faults. ---------------------------------------------------------------------------------------

  void Inject() {
    world_.timeline.After(world_.Between(absl::Milliseconds(100), absl::Seconds(3)), [this] {
      if (world_.healed) return;
      InjectOne();
      Inject();
    });
  }

  void InjectOne() {
    SimRollout* const rollout = AnyRollout();
    const absl::Duration lasts =
        world_.Between(absl::Milliseconds(200), absl::Seconds(world_.OneOf(4) ? 25 : 6));
    switch (world_.random.Below(10)) {
      case 0:
        if (!rollout->alive()) break;
        world_.Inject("rollout killed");
        rollout->Kill();
        Tell();
        world_.timeline.After(lasts / 3, [this, rollout] {
          if (!rollout->alive() && !world_.healed) StartRollout(rollout);
        });
        break;
      case 1: Stop(rollout, lasts); break;
      case 2:
        if (!trainer()->alive() || !world_.OneOf(2)) break;
        world_.Inject("trainer killed");
        ReplaceTrainer(trainer());
        break;
      case 3: StopTrainer(lasts); break;
      case 4: {
        SimRollout* const other = AnyRollout();
        Cut(rollout->name(),
            other != rollout && world_.OneOf(2) ? other->name() : trainer()->name(), lasts);
        break;
      }
      case 5:
        if (rollout->lies) break;
        world_.Inject("rollout becomes a liar");
        rollout->lies = true;
        world_.timeline.After(lasts, [rollout] { rollout->lies = false; });
        break;
      case 6: rollout->FlipWeights(); break;
      case 7: rollout->FlipRelay(); break;
      case 8: rollout->HearAgain(); break;
      default:
        if (!rollout->alive()) break;
        world_.Inject("announcements break off");
        rollout->BreakWatch();
        break;
    }
  }

  void Stop(Endpoint* process, absl::Duration lasts) {
    if (process->stopped || !process->alive()) return;
    world_.Inject(process == trainer() ? "trainer stopped" : "rollout stopped");
    process->stopped = true;
    world_.timeline.After(lasts, [process] { process->stopped = false; });
  }

  // It is taken for dead perhaps, and wakes up when another one has its place.
  void StopTrainer(absl::Duration lasts) {
    SimTrainer* const stops = trainer();
    if (!stops->alive() || stops->stopped) return;
    Stop(stops, lasts);
    if (world_.OneOf(2)) return;
    world_.timeline.After(lasts / 2, [this, stops] {
      if (stops != trainer() || !stops->alive() || world_.healed) return;
      world_.Inject("stopped trainer replaced");
      StartTrainer();
    });
  }

  void Cut(const std::string& a, const std::string& b, absl::Duration lasts) {
    if (!world_.cut.insert(std::minmax(a, b)).second) return;
    world_.Inject("link cut");
    world_.timeline.After(lasts, [this, a, b] { world_.cut.erase(std::minmax(a, b)); });
  }

  // The end. --------------------------------------------------------------------------------------

  void Heal() {
    world_.healed = true;
    world_.cut.clear();
    for (const auto& rollout : rollouts_) {
      rollout->stopped = rollout->lies = false;
      if (!rollout->alive()) rollout->Start();
    }
    for (const auto& old : trainers_) {
      old->stopped = false;
      if (old.get() != trainer()) old->Kill();
    }
    if (!trainer()->alive()) StartTrainer();
    Tell();
    trainer()->PublishLast();
  }

  bool HasLast(const SimRollout& rollout) const { return rollout.version() == last_; }

  void AwaitLast() {
    last_ = trainer()->latest()->version;
    const bool dies = (chain_ || !world_.folder.empty()) && world_.OneOf(3);
    if (dies) {
      // All know who the trainer was, one rollout has the version, and the trainer never comes
      // again.
      const auto any = [this] {
        const auto knows = [this](const auto& rollout) {
          return rollout->heard_of().incarnation == last_.incarnation;
        };
        return std::all_of(rollouts_.begin(), rollouts_.end(), knows) &&
               std::any_of(rollouts_.begin(), rollouts_.end(),
                           [this](const auto& rollout) { return HasLast(*rollout); });
      };
      world_.timeline.Run(now() + kRecovers, any);
      trainer()->Kill();
      AddRollout();
      rollouts_.back()->Start();
      Tell();
      world_.Count("runs that end without a trainer");
    }
    const auto all = [this] {
      return std::all_of(rollouts_.begin(), rollouts_.end(),
                         [this](const auto& rollout) { return HasLast(*rollout); });
    };
    const absl::Duration began = now();
    if (!world_.timeline.Run(began + kRecovers, all)) {
      for (const auto& rollout : rollouts_) {
        if (HasLast(*rollout)) continue;
        ++world_.findings.counts["manual resets"];
        world_.Wrong(absl::StrCat(rollout->name(), " is at ", rollout->version().str(), ", not at ",
                                  last_.str(), ", long after the last fault"));
      }
    }
    world_.findings.counts["runs"] = 1;
    uint64_t& slowest = world_.findings.counts["milliseconds of the slowest recovery"];
    slowest = std::max(slowest, static_cast<uint64_t>(absl::ToInt64Milliseconds(now() - began)));
    // What they do then is right too.
    world_.timeline.Run(now() + absl::Seconds(3), [] { return false; });
  }

  World world_;
  bool chain_;
  TensorSet initial_;
  SimCheckpoint checkpoint_;
  int64_t replay_end_ = 0;
  std::vector<std::unique_ptr<SimTrainer>> trainers_;  // The last one is the trainer now.
  std::vector<std::unique_ptr<SimRollout>> rollouts_;
  uint64_t told_ = 0;
  std::map<std::string, uint64_t> news_of_;  // The newest that each rollout was told.
  PolicyVersion last_;
};

}  // namespace

void Findings::Add(const Findings& other) {
  for (const auto& [fault, count] : other.faults) faults[fault] += count;
  for (const auto& [what, count] : other.counts) {
    uint64_t& sum = counts[what];
    if (what == "milliseconds of the slowest recovery") sum = std::max(sum, count);
    else sum += count;
  }
  wrong.insert(wrong.end(), other.wrong.begin(), other.wrong.end());
}

uint64_t Findings::faults_in_all() const {
  uint64_t sum = 0;
  for (const auto& [unused, count] : faults) sum += count;
  return sum;
}

ModelConfig SimModel() {
  ModelConfig config;
  config.architecture = "Qwen3ForCausalLM";
  config.vocab_size = 32;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  config.max_context = 64;
  config.tie_word_embeddings = true;
  config.qk_norm = true;
  config.initializer_range = 0.3;
  return config;
}

Findings SimulateWeights(uint64_t seed, const std::string& dir) {
  Findings findings = FleetSim(seed, dir).Run();
  std::filesystem::remove_all(dir);
  for (std::string& wrong : findings.wrong) wrong = absl::StrCat("seed ", seed, ", ", wrong);
  return findings;
}

}  // namespace sluice::fault
