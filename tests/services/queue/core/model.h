#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/services/queue/core/harness.h"

namespace sluice::queue {

// An independent model of a job, which is told of every call and answer and checks them in the most
// obvious way. It knows each stored token with its version, each list of groups that was handed
// out and the steps of the current branch, and computes H, the hash chain over the trained batches
// (Ledger::hash), from its definition. It shares only structs with the core.
class Model {
 public:
  using Key = std::pair<uint64_t, uint32_t>;  // Group's ordinal, member.
  static constexpr uint64_t kPrompt = 4;      // Tokens of each prompt.

  explicit Model(const Spec& spec) : spec_(spec) {}

  // Rollouts. -------------------------------------------------------------------------------------
  // `newest`: the newest version that an engine holds. The window depends on the lowest one, which
  // is not above it.
  // `dropped_any`: the job has dropped a member of this group.
  void Granted(const queue::Grant& grant, int64_t newest, bool dropped_any) {
    const auto known = trajectories_.lower_bound({grant.group.ordinal, 0});
    const bool fresh = known == trajectories_.end() || known->first.first != grant.group.ordinal;
    EXPECT_TRUE(!fresh || grant.step <= newest + spec_.max_staleness)
        << "step " << grant.step << " is beyond the window of " << newest;
    if (grant.row.ref.source == RowRef::kOutside) outside_.insert(grant.group.ordinal);
    for (const Member& member : grant.members) {
      EXPECT_LT(member.member, spec_.group_size);
      if (HasWaves(grant.group.ordinal) && member.member >= spec_.first_wave && !dropped_any) {
        EXPECT_TRUE(IsOpen(grant.group.ordinal)) << "a second wave that nothing asks for";
      }
      Trajectory& t = trajectories_[{grant.group.ordinal, member.member}];
      EXPECT_FALSE(t.sealed) << "a sealed member is granted again";
      EXPECT_EQ(member.attempt, t.attempt + 1) << "attempts count up";
      EXPECT_EQ(member.prefix, t.versions.empty() ? 0 : kPrompt + t.versions.size())
          << "the prefix is kept";
      t.attempt = member.attempt;
    }
  }

  void Stored(const TrajectoryRef& ref, const std::vector<VersionRun>& runs) {
    Trajectory& t = trajectories_.at({ref.group.ordinal, *ref.member});
    EXPECT_EQ(ref.attempt, t.attempt) << "an attempt that was given away wrote";
    uint64_t count = 0;
    for (const VersionRun& run : runs) {
      t.versions.insert(t.versions.end(), run.count, run.version);
      count += run.count;
    }
    t.large = t.large || 4 * count > kInHead;  // Tokens and log-probs have 4 bytes each.
  }

  void Sealed(const TrajectoryRef& ref) {
    Trajectory& t = trajectories_.at({ref.group.ordinal, *ref.member});
    EXPECT_FALSE(t.sealed) << "sealed twice";
    EXPECT_EQ(ref.attempt, t.attempt);
    t.sealed = true;
  }

  void Scored(const TrajectoryRef& ref, double reward) {
    Trajectory& t = trajectories_.at({ref.group.ordinal, *ref.member});
    EXPECT_TRUE(t.sealed);
    EXPECT_FALSE(t.scored) << "scored twice in a round";
    t.scored = true;
    t.reward = reward;
  }

  void Judged(uint64_t group, bool accepted) { verdicts_[group] = accepted; }
  // Everything that is in no batch will be scored again.
  void Rescored() {
    std::set<uint64_t> frozen;
    for (const auto& [k, list] : frozen_) {
      for (const BatchGroup& group : list) frozen.insert(group.group.ordinal);
    }
    for (auto& [key, t] : trajectories_) {
      if (frozen.contains(key.first)) continue;
      t.scored = false;
      verdicts_.erase(key.first);
      rescored_.insert(key.first);
    }
  }

  // The queue restarted without its payload: running members begin anew, and sealed ones lose their
  // payload. Columns of up to kInHead bytes are kept, as they are parts of the events.
  void LostPayload() {
    for (auto& [key, t] : trajectories_) {
      t.lost = t.lost || t.large;
      if (!t.sealed) t = {.attempt = t.attempt};
    }
  }

  bool lost(const BatchGroup& group) const {
    return std::any_of(group.members.begin(), group.members.end(), [&](const BatchMember& m) {
      return trajectories_.at({group.group.ordinal, m.member}).lost;
    });
  }

  // True if a batch of step `version` or later, which a trainer may ask for again, lost payload.
  bool LostBatchFrom(int64_t version) const {
    return std::any_of(frozen_.lower_bound(version), frozen_.end(), [&](const auto& batch) {
      return std::any_of(batch.second.begin(), batch.second.end(),
                         [&](const BatchGroup& group) { return lost(group); });
    });
  }

  // A trainer read a member: it got every byte that was written, or GONE.
  void Read(const BatchGroup& group, const BatchMember& member, const ReadAnswer& read) const {
    const TrajectoryRef ref{group.group, member.member, member.attempt};
    const Trajectory& t = trajectories_.at({ref.group.ordinal, *ref.member});
    EXPECT_EQ(read.missing.size(), t.lost) << ref.str();

    std::string tokens, expected;
    for (const Record& record : read.records) {
      for (const Field& field : record.fields) {
        if (field.name == "tokens") tokens.append(field.bytes.data.get(), field.bytes.size);
      }
    }

    for (uint64_t i = 0; i < t.versions.size() && !t.lost; ++i) {
      const int32_t token = TokenAt(ref, kPrompt + i);
      expected.append(reinterpret_cast<const char*>(&token), sizeof(token));
    }
    EXPECT_TRUE(tokens == expected) << ref.str() << ": bytes read differ from those written";
  }

  uint64_t tokens(const TrajectoryRef& ref) const {
    return trajectories_.at({ref.group.ordinal, *ref.member}).versions.size();
  }

  int64_t accepted() const { return static_cast<int64_t>(trajectories_.size()); }

  // The trainer. ----------------------------------------------------------------------------------
  // The trainer got a batch or a slice of it. A group that was handed out before must not change.
  void Handed(const AcquireBatchAnswer& answer) {
    std::vector<BatchGroup>& list = frozen_[answer.k];
    ASSERT_LE(answer.from, list.size());
    for (size_t i = 0; i < answer.groups.size(); ++i) {
      const size_t place = answer.from + i;
      if (place < list.size()) {
        EXPECT_EQ(Canonical({answer.groups[i]}), Canonical({list[place]}))
            << "place " << place << " of batch " << answer.k << " changed";
      } else {
        CheckGroup(answer.groups[i], answer.k);
        list.push_back(answer.groups[i]);
      }
    }
    EXPECT_LE(list.size(), spec_.groups_per_step);

    if (!answer.closed) return;
    EXPECT_EQ(answer.size, list.size());
    EXPECT_EQ(answer.crc32c, Crc32c(Canonical(list)));
  }

  void Applied(int64_t k, const Ledger& ledger) {
    ASSERT_EQ(k, version());
    const std::string hash = lineage_.empty() ? std::string(32, '\0') : lineage_.back().hash;

    // H after step k is the SHA-256 of H before it, k in 8 bytes, and the canonical bytes.
    std::string number;
    for (int i = 0; i < 8; ++i) number.push_back(static_cast<char>(k >> 8 * i));
    Step step{.groups = frozen_.at(k), .hash = Sha256(hash + number + Canonical(frozen_.at(k)))};

    for (const BatchGroup& group : step.groups) {
      for (const BatchMember& member : group.members) {
        EXPECT_TRUE(trained_.insert({group.group.ordinal, member.member}).second)
            << "trained twice along the lineage";
        ++step.members;
      }
    }

    lineage_.push_back(std::move(step));
    EXPECT_EQ(ledger.hash, lineage_.back().hash);
    Check(ledger);
  }

  void MadeDurable(int64_t version) {
    for (; durable_ < version; ++durable_) durable_members_ += lineage_[durable_].members;
  }

  // `checkpoint`: the trainer restored from a checkpoint, so that `answer.version` is durable.
  void Restored(int64_t incarnation, const RestoreAnswer& answer, bool checkpoint) {
    if (checkpoint && answer.version > durable_) MadeDurable(answer.version);

    // From an older checkpoint, steps are trained again. The groups that were durable in them stay
    // counted as durable.
    durable_ = std::min(durable_, answer.version);
    while (version() > answer.version) {
      for (const BatchGroup& group : lineage_.back().groups) {
        for (const BatchMember& member : group.members)
          trained_.erase({group.group.ordinal, member.member});
      }
      lineage_.pop_back();
    }
    if (answer.mode == RestoreMode::kRequeue)
      frozen_.erase(frozen_.lower_bound(answer.version), frozen_.end());
    forks_.push_back({incarnation, answer.fork});
    Check(answer.ledger);
  }

  // The counters of the ledger are those of this model, and they balance.
  void Check(const Ledger& ledger) const {
    int64_t applied = 0;
    for (int64_t k = durable_; k < version(); ++k) applied += lineage_[k].members;
    EXPECT_EQ(ledger.accepted, accepted());
    EXPECT_EQ(ledger.applied, applied);
    EXPECT_EQ(ledger.durable, durable_members_);
    EXPECT_EQ(ledger.accepted,
              ledger.durable + ledger.applied + ledger.live + ledger.dropped_total());
  }

  int64_t version() const { return static_cast<int64_t>(lineage_.size()); }
  int64_t durable() const { return durable_; }
  const std::vector<BatchGroup>& list(int64_t k) const { return frozen_.at(k); }

 private:
  struct Trajectory {
    uint32_t attempt = 0;
    bool sealed = false, scored = false;
    bool large = false, lost = false;  // Has payload that a restart may lose; has lost it.
    double reward = 0;
    std::vector<PolicyVersion> versions;  // Of each own token.
  };
  struct Step {
    std::vector<BatchGroup> groups;
    std::string hash;
    int64_t members = 0;
  };

  // Groups of prompts from outside come at once. Of a group that was scored again, this model does
  // not know by which round its waves were decided.
  bool HasWaves(uint64_t group) const {
    return spec_.first_wave > 0 && !outside_.contains(group) && !rescored_.contains(group);
  }

  // The first wave is scored as a whole, and its rewards differ.
  bool IsOpen(uint64_t group) const {
    std::set<double> rewards;
    for (uint32_t m = 0; m < spec_.first_wave; ++m) {
      const auto t = trajectories_.find({group, m});
      if (t == trajectories_.end() || !t->second.scored) return false;
      rewards.insert(t->second.reward);
    }
    return rewards.size() > 1;
  }

  // False if a later incarnation of the trainer restored a checkpoint from before `version`.
  bool OnBranch(const PolicyVersion& version) const {
    for (const auto& [incarnation, fork] : forks_) {
      if (version.incarnation < incarnation && version.number > fork) return false;
    }
    return true;
  }

  // The group is complete and accepted, and it masks exactly the tokens that step k must not train.
  void CheckGroup(const BatchGroup& group, int64_t k) const {
    EXPECT_GE(group.members.size(), spec_.group_min);
    EXPECT_FALSE(lost(group)) << "cut without its payload";
    if (spec_.has_task(Granularity::kGroup)) {
      EXPECT_TRUE(verdicts_.contains(group.group.ordinal) && verdicts_.at(group.group.ordinal))
          << "cut without a verdict";
    }

    std::set<double> rewards;
    // After the filter has passed a group, some of its members may be dropped.
    const bool shrunk = group.members.size() < group.size;
    for (const BatchMember& member : group.members) {
      const Trajectory& t = trajectories_.at({group.group.ordinal, member.member});
      EXPECT_TRUE(t.sealed && t.scored);
      EXPECT_EQ(member.attempt, t.attempt);
      EXPECT_EQ(member.tokens, kPrompt + t.versions.size());
      rewards.insert(t.reward);

      uint64_t trained = 0;
      for (uint64_t i = 0; i < t.versions.size(); ++i) {
        bool masked = false;
        for (const TokenRun& run : member.masked)
          masked |= run.first <= kPrompt + i && kPrompt + i < run.first + run.count;
        const bool legal =
            k - t.versions[i].number <= spec_.max_staleness && OnBranch(t.versions[i]);
        EXPECT_EQ(masked, !legal) << "token " << i << " of version " << t.versions[i].str()
                                  << " in step " << k;
        trained += !masked;
      }
      EXPECT_EQ(member.trained, trained);

      EXPECT_TRUE(trained >= spec_.min_trainable || member.masked.empty());
    }
    // Under the policy shrink a late group may end with its first wave, whatever its rewards are.
    const uint64_t ordinal = group.group.ordinal;
    if (HasWaves(ordinal) && !shrunk && spec_.straggler != Straggler::kShrink) {
      EXPECT_EQ(group.size, IsOpen(ordinal) ? spec_.group_size : spec_.first_wave);
    }
    if (spec_.filter == Filter::kSignal) {
      EXPECT_TRUE(rewards.size() > 1 || shrunk) << "no signal";
    }
  }

  // The bytes of a batch that H and its CRC32C are computed from.
  std::string Canonical(const std::vector<BatchGroup>& groups) const {
    std::string out;
    const auto add = [&](uint64_t value, int bytes) {
      for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> 8 * i));
    };
    for (const BatchGroup& group : groups) {
      for (const BatchMember& member : group.members) {
        const uint64_t own = trajectories_.at({group.group.ordinal, member.member}).versions.size();
        std::string bytes;
        for (uint64_t i = 0; i < own; ++i) {
          const int32_t token = TokenAt({group.group, member.member, 0}, kPrompt + i);
          bytes.append(reinterpret_cast<const char*>(&token), 4);
        }
        for (uint64_t i = 0; i < own; ++i) {
          const float logprob = -0.25f * static_cast<float>(kPrompt + i + 1);
          bytes.append(reinterpret_cast<const char*>(&logprob), 4);
        }
        out += group.group.id().str();
        add(member.member, 4);
        add(member.attempt, 4);
        add(Crc32c(bytes), 4);
        add(member.masked.size(), 4);
        for (const TokenRun& run : member.masked) add(run.first, 8), add(run.count, 8);
      }
    }
    return out;
  }

  const Spec spec_;
  std::map<Key, Trajectory> trajectories_;
  std::map<uint64_t, bool> verdicts_;                  // By group, in the last round of scoring.
  std::map<int64_t, std::vector<BatchGroup>> frozen_;  // Lists as handed out, on this branch.
  std::vector<Step> lineage_;                          // Steps 0 .. K-1 of this branch.
  std::set<Key> trained_;                              // The members in `lineage_`.
  std::set<uint64_t> outside_, rescored_;              // Groups.
  // Each incarnation of the trainer, with the version that it continued from.
  std::vector<std::pair<int64_t, int64_t>> forks_;
  int64_t durable_ = 0, durable_members_ = 0;
};

}  // namespace sluice::queue
