#include "tests/fault/judge.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "services/trainer/core/lineage.h"

namespace sluice::fault {
namespace {

// Takes the canonical bytes of a batch apart. Per member they hold the group (16 bytes), the
// member, the attempt, a CRC32C and the number of masked runs (4 bytes each), then 16 bytes for
// each masked run. Returns "<group>.<member>" and the attempt of each member.
std::vector<std::pair<std::string, uint32_t>> MembersOf(const std::string& canonical) {
  // Each of these numbers is below 2^16, so its two low bytes are enough.
  const auto u32 = [&](size_t at) {
    return static_cast<uint32_t>(static_cast<unsigned char>(canonical[at])) |
           static_cast<uint32_t>(static_cast<unsigned char>(canonical[at + 1])) << 8;
  };

  std::vector<std::pair<std::string, uint32_t>> members;
  for (size_t at = 0; at + 32 <= canonical.size(); at += 32 + 16 * u32(at + 28)) {
    members.emplace_back(absl::StrCat(ToHex(canonical.substr(at, 16)), ".", u32(at + 16)),
                         u32(at + 20));
  }
  return members;
}

struct Step {
  std::string digest, canonical, hash;
};

// Parses a line "train K DIGEST CANONICAL HASH". All of its words but K are in hex.
Step StepOf(const Line& line) {
  return {*FromHex(line.words[2]), *FromHex(line.words[3]), *FromHex(line.words[4])};
}

// Reads the evidence line by line, then checks it as a whole, and collects what is wrong.
class EvidenceChecker {
 public:
  explicit EvidenceChecker(const Evidence& evidence)
      : evidence_(evidence), full_(evidence.durability == "full") {}

  Verdict Judge() {
    for (const Line& line : evidence_.lines) ReadLine(line);
    CheckLineage();
    CheckSeals();
    CheckLedger();
    return std::move(verdict_);
  }

 private:
  void AddFinding(std::string what) { verdict_.wrong.push_back(std::move(what)); }
  void AddLost(std::string what) {
    ++verdict_.lost;
    AddFinding("LOST: " + std::move(what));
  }

  void AddTwice(std::string what) {
    ++verdict_.twice;
    AddFinding("TWICE: " + std::move(what));
  }

  void ReadLine(const Line& line) {
    const std::vector<std::string>& words = line.words;
    if (words[0] == "ask" && words[1] == "admit") {
      admit_asked_at_[line.process] = line.at;
    } else if (words[0] == "put") {
      ++verdict_.acknowledged;
      puts_[words[1]].emplace_back(line.at, std::stoull(words[3]));
    } else if (words[0] == "grant") {
      CheckGrant(line);
    } else if (words[0] == "seal") {
      ++verdict_.acknowledged;
      if (!seals_.insert(words[1]).second)
        AddTwice(absl::StrCat(words[1], " was sealed by two attempts"));
    } else if (words[0] == "train") {
      AddTraining(std::stoll(words[1]), StepOf(line));
    } else if (words[0] == "restore") {
      AddRestore(std::stoll(words[1]), std::stoll(words[2]));
    } else if (words[0] == "durable") {
      durable_ = std::max<int64_t>(durable_, std::stoll(words[1]));
    } else if (words[0] == "wrong") {
      AddFinding(absl::StrCat(line.process, ": ", absl::StrJoin(words, " ")));
    }
  }

  // Every piece that was acknowledged before the process asked for this grant must be in the
  // granted prefix.
  void CheckGrant(const Line& line) {
    const std::vector<std::string>& words = line.words;
    const uint64_t prefix = std::stoull(words[3]);

    for (const auto& [at, end] : puts_[words[1]]) {
      if (full_ && at < admit_asked_at_[line.process] && end > prefix)
        AddLost(absl::StrCat("tokens up to ", end, " of ", words[1], "; attempt ", words[2],
                             " begins at ", prefix));
    }
  }

  void AddTraining(int64_t k, const Step& step) {
    const auto [it, fresh] = steps_.try_emplace(k, step);
    if (fresh) return;

    ++verdict_.replayed;
    if (it->second.canonical != step.canonical)
      AddFinding(absl::StrCat("step ", k, " was trained on another list when it came again"));
    if (it->second.digest != step.digest)
      AddFinding(absl::StrCat("step ", k, " was trained on other bytes when it came again"));
    if (it->second.hash != step.hash)
      AddFinding(absl::StrCat("step ", k, " has another H when it came again"));
  }

  // The new branch of training begins at step `end`. Steps from there on that were trained before
  // are not in the lineage.
  void AddRestore(int64_t version, int64_t end) {
    if (version < durable_)
      AddLost(absl::StrCat("a restore began at version ", version, ", ", durable_, " was durable"));

    for (auto it = steps_.lower_bound(end); it != steps_.end(); it = steps_.erase(it)) {
      ++verdict_.forgotten;
      if (full_)
        AddLost(absl::StrCat("step ", it->first,
                             " was trained and not handed out again, the restore of version ",
                             version, " ends at ", end));
    }
  }

  void CheckLineage() {
    verdict_.steps = evidence_.checkpoint.version;

    if (durable_ > verdict_.steps)
      AddLost(
          absl::StrCat("version ", durable_, " is durable, the checkpoint holds ", verdict_.steps));

    std::string weights(32, '\0'), hash = trainer::FirstLedgerHash();
    std::map<std::string, int64_t> where;
    int64_t next = 0;

    for (const auto& [k, step] : steps_) {
      if (k != next++)
        AddFinding(absl::StrCat("step ", k, " was trained, step ", next - 1, " never was"));

      weights = NextWeights(weights, k, step.digest);
      hash = trainer::NextLedgerHash(hash, k, step.canonical);
      if (hash != step.hash)
        AddFinding(absl::StrCat("H(", k + 1, ") recomputed is ", ToHex(hash), ", the queue said ",
                                ToHex(step.hash)));

      for (const auto& [member, attempt] : MembersOf(step.canonical)) {
        ++verdict_.trained;
        const auto [it, fresh] = where.try_emplace(member, k);
        if (!fresh) AddTwice(absl::StrCat(member, " is in steps ", it->second, " and ", k));
        trained_.insert(member);
      }
    }

    if (next != verdict_.steps)
      AddFinding(absl::StrCat("the checkpoint is of version ", verdict_.steps, ", ", next,
                              " steps were trained"));
    if (weights != evidence_.checkpoint.weights)
      AddFinding("the checkpoint's weights are not those of an undisturbed run over its lineage");
    if (hash != evidence_.ledger.hash())
      AddFinding(absl::StrCat("H recomputed over the lineage is ", ToHex(hash), ", the ledger has ",
                              ToHex(evidence_.ledger.hash())));
  }

  void CheckSeals() {
    for (const auto& [reason, count] : evidence_.ledger.dropped()) {
      verdict_.dropped += count;
      const bool stale =
          (reason == "stale" || reason == "straggler") && evidence_.max_staleness < kUnbounded;
      if (!stale && !(!full_ && (reason == "lost" || reason == "off_branch")) && count > 0)
        AddLost(absl::StrCat(count, " trajectories were dropped as ", reason));
    }

    std::vector<std::string> missing;
    for (const std::string& member : seals_) {
      if (!trained_.contains(member) && !evidence_.live.contains(member)) missing.push_back(member);
    }

    if (static_cast<int64_t>(missing.size()) <= verdict_.dropped) return;
    AddLost(absl::StrCat(missing.size(),
                         " sealed trajectories are neither trained nor live, the ledger has ",
                         verdict_.dropped, " dropped; one is ", missing[0]));
  }

  void CheckLedger() {
    const common::v1::Ledger& ledger = evidence_.ledger;
    if (ledger.accepted() != ledger.durable() + ledger.applied() + ledger.live() + verdict_.dropped)
      AddFinding("the ledger does not balance: " + ledger.ShortDebugString());

    const int64_t booked = ledger.durable() + ledger.applied();
    if (booked < verdict_.trained)
      AddLost(absl::StrCat("the ledger counts ", booked, " trained trajectories, the lineage has ",
                           verdict_.trained));
    if (booked > verdict_.trained)
      AddTwice(absl::StrCat("the ledger counts ", booked, " trained trajectories, the lineage has ",
                            verdict_.trained));

    if (ledger.live() != static_cast<int64_t>(evidence_.live.size()))
      AddFinding(absl::StrCat("the ledger has ", ledger.live(), " live, Peek shows ",
                              evidence_.live.size()));
    if (ledger.durable_version() != verdict_.steps)
      AddFinding(absl::StrCat("the queue's durable version is ", ledger.durable_version(),
                              ", the checkpoint's ", verdict_.steps));
  }

  const Evidence& evidence_;
  const bool full_;
  Verdict verdict_;
  // When each process last asked Admit for work.
  std::map<std::string, int64_t> admit_asked_at_;
  // For each trajectory, when each of its pieces was acknowledged and up to which token.
  std::map<std::string, std::vector<std::pair<int64_t, uint64_t>>> puts_;
  std::set<std::string> seals_, trained_;
  std::map<int64_t, Step> steps_;  // The steps of the current branch.
  int64_t durable_ = 0;
};

// Tampering. --------------------------------------------------------------------------------------

// Returns the line of the last training of the branch's last step.
Line* FindLastTraining(Evidence* evidence) {
  Line* last = nullptr;
  for (Line& line : evidence->lines) {
    if (line.words[0] == "train" &&
        (last == nullptr || std::stoll(line.words[1]) >= std::stoll(last->words[1])))
      last = &line;
  }
  return last;
}

// Changes the canonical bytes of the last step in every line that tells of its training.
void ChangeLastStep(Evidence* evidence, const std::function<std::string(std::string)>& change) {
  const Line* const last = FindLastTraining(evidence);
  const std::string k = last->words[1], changed = ToHex(change(*FromHex(last->words[3])));

  for (Line& line : evidence->lines) {
    if (line.words[0] == "train" && line.words[1] == k) line.words[3] = changed;
  }
}

}  // namespace

absl::StatusOr<Evidence> GatherEvidence(const std::string& dir) {
  Evidence evidence;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> files, ListDir(dir + "/history"));
  for (const std::string& file : files) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(dir + "/history/" + file));
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      std::vector<std::string> words = absl::StrSplit(line, ' ');
      const int64_t at = std::stoll(words[0]);
      words.erase(words.begin());
      evidence.lines.push_back({at, std::move(words), file});
    }
  }

  std::stable_sort(evidence.lines.begin(), evidence.lines.end(),
                   [](const Line& a, const Line& b) { return a.at < b.at; });

  SLUICE_ASSIGN_OR_RETURN(evidence.checkpoint, LoadCheckpoint(dir));
  return evidence;
}

Verdict Judge(const Evidence& evidence) { return EvidenceChecker(evidence).Judge(); }

std::vector<std::string> SelfCheck(const Evidence& evidence) {
  std::vector<std::string> missed;
  const auto expect = [&](const char* what, const std::function<void(Evidence*)>& tamper,
                          const std::function<bool(const Verdict&)>& seen) {
    Evidence changed = evidence;
    tamper(&changed);
    if (!seen(Judge(changed))) missed.push_back(what);
  };
  const auto lost = [](const Verdict& verdict) { return verdict.lost > 0; };
  const auto twice = [](const Verdict& verdict) { return verdict.twice > 0; };
  const auto wrong = [](const Verdict& verdict) { return !verdict.wrong.empty(); };

  expect(
      "a trained trajectory that the ledger forgot",
      [](Evidence* e) {
        e->ledger.set_durable(e->ledger.durable() - 1),
            e->ledger.set_accepted(e->ledger.accepted() - 1);
      },
      lost);
  expect(
      "sealed trajectories that vanished",
      [](Evidence* e) {
        int64_t dropped = 0;
        for (const auto& [reason, count] : e->ledger.dropped()) dropped += count;
        for (int64_t i = 0; i <= dropped; ++i) {
          Line seal = e->lines.back();
          seal.words = {"seal", absl::StrCat("ghost.", i), "1"};
          e->lines.push_back(seal);
        }
      },
      lost);
  expect(
      "a trajectory trained in two steps",
      [](Evidence* e) {
        // Unless durability is full, a step may be taken back and trained anew; then its last
        // training counts.
        std::string first_step;
        for (const Line& line : e->lines) {
          if (line.words[0] == "train" && line.words[1] == "0")
            first_step = *FromHex(line.words[3]);
        }

        ChangeLastStep(e, [&](const std::string& canonical) { return canonical + first_step; });
      },
      twice);
  expect(
      "a trajectory left out of the last step",
      [](Evidence* e) {
        ChangeLastStep(e, [](const std::string& canonical) {
          return canonical.substr(0, canonical.size() - 32);
        });
      },
      wrong);
  expect(
      "a trajectory with another CRC32C",
      [](Evidence* e) {
        ChangeLastStep(e, [](const std::string& canonical) {
          return canonical.substr(0, 24) + static_cast<char>(canonical.at(24) ^ 1) +
                 canonical.substr(25);
        });
      },
      wrong);
  expect("a changed ledger hash", [](Evidence* e) { (*e->ledger.mutable_hash())[0] ^= 1; }, wrong);
  expect("weights of another run", [](Evidence* e) { e->checkpoint.weights[0] ^= 1; }, wrong);
  expect(
      "a live trajectory that vanished",
      [](Evidence* e) { e->ledger.set_live(e->ledger.live() + 1); }, wrong);
  expect(
      "a step trained on other bytes when it came again",
      [](Evidence* e) {
        Line again = *FindLastTraining(e);
        again.words[2] = ToHex(std::string(32, 'x'));
        e->lines.push_back(again);
      },
      wrong);
  if (evidence.durability == "full") {
    expect(
        "a prefix without an acknowledged piece",
        [](Evidence* e) {
          for (size_t i = 0; i < e->lines.size(); ++i) {
            if (e->lines[i].words[0] != "put") continue;
            Line ask = e->lines.back(), grant = e->lines.back();
            ask.words = {"ask", "admit"};
            ask.at += 1;
            grant.words = {"grant", e->lines[i].words[1], "9", "0"};
            e->lines.insert(e->lines.end(), {ask, grant});
            return;
          }
        },
        lost);
    expect(
        "a step that was forgotten",
        [](Evidence* e) {
          Line restore = e->lines.back();
          restore.words = {"restore", absl::StrCat(e->checkpoint.version),
                           absl::StrCat(e->checkpoint.version - 1)};
          e->lines.push_back(restore);
        },
        lost);
  }
  return missed;
}

}  // namespace sluice::fault
