#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/queue_client/queue_client.h"
#include "common/rpc/client.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"
#include "services/trainer/core/lineage.h"
#include "sluice/queue/v1/queue.pb.h"
#include "tests/integration/harness/cluster.h"
#include "tests/integration/harness/job.h"

namespace sluice::integration {
namespace {

constexpr absl::Duration kLongest = absl::Minutes(10);
constexpr int64_t kTrainedSteps = 30;
// The ack at which rollout-0 is stopped, and how often that is tried. An answer of 380 tokens comes
// in at most 48 pieces.
constexpr int kAcks = 60, kTries = 100;
constexpr size_t kEarly = 96;  // An answer with at most so many tokens has just begun.

// An answer as the queue holds it: the bytes of its columns, and the version of each token.
struct Stored {
  uint32_t attempt = 0;
  std::string tokens, logprobs;
  std::vector<std::string> versions;
};
using Owner = std::pair<std::string, uint32_t>;  // Group and member.
using Answers = std::map<Owner, Stored>;

// Reads what the queue holds, as the controller.
class Recorder {
 public:
  Recorder(const Cluster& cluster, const std::string& job)
      : client_(
            cluster.channel("queue-0"),
            {.job = job, .worker = "controller", .incarnation = 0, .give_up = absl::Seconds(20)}) {}

  // The members that `keep` accepts by their JSON in the rows of Peek.
  absl::StatusOr<Answers> Read(
      const std::function<bool(const Owner& owner, const nlohmann::json& member)>& keep) {
    queue::v1::PeekRequest peek;
    *peek.mutable_call() = client_.MakeCall();
    peek.set_what(queue::v1::PEEK_WHAT_GROUPS);
    queue::v1::PeekResponse groups;
    SLUICE_RETURN_IF_ERROR(rpc::Call(client_.channel(), peek, &groups));

    std::vector<common::v1::Want> wants;
    for (const queue::v1::PeekRow& row : groups.rows()) {
      const nlohmann::json json = nlohmann::json::parse(row.json());
      SLUICE_ASSIGN_OR_RETURN(const std::string group, FromHex(row.node().id()));
      uint32_t member = 0;
      for (const nlohmann::json& entry : json.at("members")) {
        if (keep({group, member}, entry)) {
          common::v1::Want& want = wants.emplace_back();
          want.mutable_owner()->set_group(group);
          want.mutable_owner()->set_member(member);
        }
        ++member;
      }
    }
    return Read(wants);
  }

  absl::StatusOr<Answers> Read(const std::vector<common::v1::Want>& wants) {
    if (wants.empty()) return Answers();
    std::vector<common::v1::Want> missing;
    SLUICE_ASSIGN_OR_RETURN(const std::vector<QueueClient::Fetched> records,
                            client_.GetAll("", wants, &missing));

    Answers answers;
    for (const QueueClient::Fetched& fetched : records) {
      const common::v1::Record& record = fetched.record;
      if (!record.has_piece() || !record.owner().has_member()) continue;
      Stored& stored = answers[{record.owner().group(), record.owner().member()}];
      stored.attempt = record.owner().attempt();
      for (int i = 0; i < record.fields_size(); ++i) {
        if (record.fields(i).name() == "tokens")
          stored.tokens += fetched.fields[static_cast<size_t>(i)];
        if (record.fields(i).name() == "logprobs")
          stored.logprobs += fetched.fields[static_cast<size_t>(i)];
      }
      for (const common::v1::VersionRun& run : record.piece().runs()) {
        const std::string version =
            absl::StrCat(run.version().incarnation(), ".", run.version().number());
        stored.versions.insert(stored.versions.end(), run.count(), version);
      }
    }
    return answers;
  }

 private:
  QueueClient client_;
};

enum class Loss { kKilled, kKilledAndThenTheQueue, kDrained };

// `member` is the member's JSON in a row of Peek.
bool IsUnfinished(const nlohmann::json& member) {
  return member.at("state") == "running" || member.at("state") == "reserved";
}
bool IsAtRolloutZero(const Owner&, const nlohmann::json& member) {
  return member.at("worker") == "rollout-0" && IsUnfinished(member);
}

// Whether `part` is the beginning of `whole`, in tokens, log-probs and versions.
bool IsPrefixOf(const Stored& part, const Stored& whole) {
  return absl::StartsWith(whole.tokens, part.tokens) &&
         absl::StartsWith(whole.logprobs, part.logprobs) &&
         whole.versions.size() >= part.versions.size() &&
         std::equal(part.versions.begin(), part.versions.end(), whole.versions.begin());
}

std::vector<common::v1::Want> MakeWants(const Answers& answers) {
  std::vector<common::v1::Want> wants;
  for (const auto& [owner, stored] : answers) {
    wants.emplace_back().mutable_owner()->set_group(owner.first);
    wants.back().mutable_owner()->set_member(owner.second);
  }
  return wants;
}

// Stops rollout-0 at an ack when some of its answers have just begun; `held` gets what the queue
// has of these. Not every ack will do: the queue may have all tokens of all answers by then, and
// lack only their Seal. Such answers end where they are, or are dropped for their age before the
// controller gives rollout-0 up. In neither case are they continued.
void StopWithAnswersBegun(Cluster& cluster, Recorder& recorder, int acks, Answers* held) {
  for (int tries = 0; held->empty() && tries < kTries; ++tries) {
    if (tries > 0) cluster.Signal("rollout-0", SIGCONT);
    ASSERT_EQ(cluster.Arm("rollout-0", "rollout.put.after_ack", "stop", acks), absl::OkStatus());
    ASSERT_EQ(cluster.process("rollout-0").AwaitStopped(), absl::OkStatus());
    auto running = recorder.Read(IsAtRolloutZero);
    ASSERT_EQ(running.status(), absl::OkStatus());
    *held = *std::move(running);
    std::erase_if(*held, [](const auto& answer) {
      return answer.second.versions.empty() || answer.second.versions.size() > kEarly;
    });
  }
  ASSERT_FALSE(held->empty())
      << "rollout-0 had none of its answers just begun, each time it was stopped";
}

using Trained = std::map<Owner, trainer::LineageEntry>;

// The lineage of what the last checkpoint was trained on.
void ReadTrained(const job::v1::JobStatus& end, Trained* trained) {
  const auto lineage = ReadFile(end.result().checkpoint() + "/lineage.jsonl");
  ASSERT_EQ(lineage.status(), absl::OkStatus());
  for (absl::string_view line : absl::StrSplit(*lineage, '\n', absl::SkipEmpty())) {
    const auto entry = trainer::ParseLineageLine(line);
    ASSERT_EQ(entry.status(), absl::OkStatus());
    (*trained)[{std::string(entry->group.view()), entry->member}] = *entry;
  }
}

class PrefixTest : public testing::TestWithParam<Loss> {
 protected:
  // Ends rollout-0, which is stopped.
  void EndRollout(Cluster& cluster, Recorder& recorder, const Answers& held) {
    if (GetParam() == Loss::kDrained) {
      cluster.Signal("rollout-0", SIGTERM);  // It takes effect as soon as the process goes on.
      cluster.Signal("rollout-0", SIGCONT);
      ASSERT_EQ(cluster.process("rollout-0").Await(kLongest).value_or(-1), 0);
      return;
    }
    ASSERT_EQ(cluster.Kill("rollout-0"), absl::OkStatus());
    if (GetParam() != Loss::kKilledAndThenTheQueue) return;

    ASSERT_EQ(cluster.Kill("queue-0"), absl::OkStatus());
    ASSERT_EQ(cluster.Start("queue-0"), absl::OkStatus());
    const auto after = recorder.Read(MakeWants(held));
    ASSERT_EQ(after.status(), absl::OkStatus());
    for (const auto& [owner, stored] : held) {
      const auto now = after->find(owner);
      EXPECT_TRUE(now != after->end() && IsPrefixOf(stored, now->second))
          << "the queue has lost what it acknowledged of member " << owner.second;
    }
  }
};

// What is trained begins with what the queue had acknowledged of the lost rollout's answers: the
// same tokens, log-probs and versions, continued elsewhere.
TEST_P(PrefixTest, AnAnswerGoesOnElsewhereFromWhatTheQueueHadAcknowledged) {
  SLUICE_NEEDS_TEST_DATA("models/stories260k/model.safetensors");
  const std::string model = testing_data::Path("models/stories260k");
  Cluster cluster({.rollouts = 2, .env = {{"SLUICE_DRAIN_GRACE", "1ms"}}});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job =
      Job::Submit(&cluster, SLUICE_SOURCE_DIR "/tests/integration/stories.yaml",
                  {absl::StrCat("model.path=", model),
                   absl::StrCat("data.train.0.path=", model, "/prompts.jsonl"),
                   "rollout.max_response=380", absl::StrCat("limits.max_steps=", kTrainedSteps),
                   absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")});
  ASSERT_EQ(job.status(), absl::OkStatus());
  ASSERT_EQ((*job)->AwaitStep(1, kLongest), absl::OkStatus());

  Recorder recorder(cluster, (*job)->id());
  Answers held;
  ASSERT_NO_FATAL_FAILURE(StopWithAnswersBegun(cluster, recorder, kAcks, &held));
  ASSERT_NO_FATAL_FAILURE(EndRollout(cluster, recorder, held));
  const int64_t fault_step = (*job)->steps();

  // Wait until these answers have ended. The queue keeps them until the job ends.
  absl::StatusOr<Answers> left;
  const auto is_left = [&](const Owner& owner, const nlohmann::json& member) {
    return held.contains(owner) && IsUnfinished(member);
  };
  for (int64_t step = fault_step + 5; step < kTrainedSteps && (!left.ok() || !left->empty());
       ++step) {
    ASSERT_EQ((*job)->AwaitStep(step, kLongest), absl::OkStatus());
    left = recorder.Read(is_left);
    ASSERT_EQ(left.status(), absl::OkStatus());
  }

  const auto after = recorder.Read(MakeWants(held));
  ASSERT_EQ(after.status(), absl::OkStatus());

  const auto end = (*job)->AwaitEnd(kLongest);
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  Trained trained;
  ASSERT_NO_FATAL_FAILURE(ReadTrained(*end, &trained));

  int resumed = 0;
  for (const auto& [owner, prefix] : held) {
    const auto now = after->find(owner);
    if (now == after->end()) continue;
    const Stored& whole = now->second;
    EXPECT_TRUE(IsPrefixOf(prefix, whole)) << "member " << owner.second << " has other tokens now";

    const auto used = trained.find(owner);
    if (used == trained.end()) continue;  // The job ended before its turn.
    EXPECT_EQ(used->second.attempt, whole.attempt);
    EXPECT_EQ(Crc32c(whole.tokens + whole.logprobs), used->second.crc32c);

    // The answer ended during the drain.
    if (GetParam() == Loss::kDrained && whole.attempt == 1) continue;
    EXPECT_GT(whole.attempt, 1U);
    if (whole.tokens.size() > prefix.tokens.size()) ++resumed;
  }

  EXPECT_GT(resumed, 0) << "of " << held.size()
                        << " answers none went on elsewhere and was trained on";

  const auto& dropped = end->result().ledger().dropped();
  const auto stale = dropped.find("stale");
  EXPECT_LE(held.size() - after->size(),
            stale == dropped.end() ? 0U : static_cast<size_t>(stale->second))
      << "answers are gone, and not for their age";
}

INSTANTIATE_TEST_SUITE_P(
    After, PrefixTest, testing::Values(Loss::kKilled, Loss::kKilledAndThenTheQueue, Loss::kDrained),
    [](const auto& info) {
      return std::string(info.param == Loss::kKilled    ? "AKill"
                         : info.param == Loss::kDrained ? "ADrain"
                                                        : "AKillAndThenOneOfTheQueue");
    });

struct DeterministicRun {
  Answers held;     // Those that the killed worker had just begun.
  Answers answers;  // All that have ended.
  Trained trained;
  std::string weights;
};

// A deterministic job of long answers. With `kill`, its first worker dies in the middle of some.
void RunDeterministic(bool kill, DeterministicRun* run) {
  // The job needs some steps: on a busy machine a few pass before the worker is caught at the
  // beginning of an answer.
  constexpr int64_t kFew = 12;
  constexpr int kFirstAck = 1;  // A step's answers come in few messages.

  const std::string model = testing_data::Path("models/stories260k");
  Cluster cluster({.rollouts = 2});
  ASSERT_EQ(cluster.Start(), absl::OkStatus());
  const auto job = Job::Submit(
      &cluster, SLUICE_SOURCE_DIR "/tests/integration/stories.yaml",
      {"run.deterministic=true", "queue.max_staleness=0", absl::StrCat("model.path=", model),
       absl::StrCat("data.train.0.path=", model, "/prompts.jsonl"), "rollout.max_response=380",
       absl::StrCat("limits.max_steps=", kFew),
       absl::StrCat("checkpoint.dir=", cluster.dir(), "/checkpoints")});
  ASSERT_EQ(job.status(), absl::OkStatus());

  Recorder recorder(cluster, (*job)->id());
  ASSERT_EQ((*job)->AwaitStep(0, kLongest), absl::OkStatus());
  if (kill) {
    ASSERT_NO_FATAL_FAILURE(StopWithAnswersBegun(cluster, recorder, kFirstAck, &run->held));
    ASSERT_EQ(cluster.Kill("rollout-0"), absl::OkStatus());
  }

  // The queue has the answers until the job ends.
  ASSERT_EQ((*job)->AwaitStep(kFew - 3, kLongest), absl::OkStatus());
  const auto answers = recorder.Read(
      [&](const Owner&, const nlohmann::json& member) { return !IsUnfinished(member); });
  ASSERT_EQ(answers.status(), absl::OkStatus());
  run->answers = *answers;

  const auto end = (*job)->AwaitEnd(kLongest);
  ASSERT_EQ(end.status(), absl::OkStatus());
  ASSERT_EQ(end->state(), job::v1::JOB_STATE_SUCCEEDED) << Text(*end);
  EXPECT_EQ(CheckLedgerBalances(*end), absl::OkStatus());
  for (const job::v1::StepReport& report : (*job)->reports())
    EXPECT_EQ(report.values().at("absdiff_max"), 0) << "step " << report.k();
  ASSERT_NO_FATAL_FAILURE(ReadTrained(*end, &run->trained));

  const auto weights = ReadFile(end->result().checkpoint() + "/model.safetensors");
  ASSERT_EQ(weights.status(), absl::OkStatus());
  run->weights = *weights;
}

TEST(DeterministicPrefixTest,
     AnswersOfAWorkerKilledWhileItSampledEndElsewhereInTheBitsOfAnUndisturbedRun) {
  SLUICE_NEEDS_TEST_DATA("models/stories260k/model.safetensors");
  DeterministicRun quiet;
  ASSERT_NO_FATAL_FAILURE(RunDeterministic(/*kill=*/false, &quiet));

  // A worker may be caught so late that its answers have not ended when they are read. That proves
  // nothing, and another job is run.
  int went_on = 0;
  for (int jobs = 0; went_on == 0 && jobs < 4; ++jobs) {
    DeterministicRun killed;
    ASSERT_NO_FATAL_FAILURE(RunDeterministic(/*kill=*/true, &killed));
    ASSERT_EQ(quiet.trained.size(), killed.trained.size());
    for (const auto& [owner, entry] : quiet.trained) {
      ASSERT_TRUE(killed.trained.contains(owner));
      EXPECT_EQ(killed.trained.at(owner).crc32c, entry.crc32c)
          << "member " << owner.second << " of step " << entry.k
          << " has other tokens or log-probs";
    }

    EXPECT_EQ(quiet.weights, killed.weights);

    for (const auto& [owner, prefix] : killed.held) {
      if (!killed.answers.contains(owner) || !quiet.answers.contains(owner)) continue;
      const Stored &whole = killed.answers.at(owner), &undisturbed = quiet.answers.at(owner);
      EXPECT_TRUE(IsPrefixOf(prefix, whole));
      EXPECT_EQ(whole.tokens, undisturbed.tokens);
      EXPECT_EQ(whole.logprobs, undisturbed.logprobs) << "in bits";
      EXPECT_EQ(whole.versions, undisturbed.versions);

      if (whole.attempt > 1 && whole.tokens.size() > prefix.tokens.size()) ++went_on;
    }
  }

  EXPECT_GT(went_on, 0) << "in none of the jobs an answer went on elsewhere";
}

}  // namespace
}  // namespace sluice::integration
