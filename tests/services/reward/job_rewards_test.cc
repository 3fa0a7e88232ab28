// Rewards of a job that change while it runs, with real plug-ins, and candidates.
#include "services/reward/job_rewards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/metrics/metrics.h"
#include "common/rpc/convert.h"
#include "tests/common/handed.h"
#include "tests/common/plugins/folder.h"

namespace sluice::reward {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A plug-in that gives each answer the score `score`, and tests itself for `self_test`.
std::string Program(double score, double self_test) {
  return absl::StrCat(R"(
import json, sys
json.loads(sys.stdin.readline())
print(json.dumps({"name": "test", "version": "1", "self_test":
                  [{"item": {"completion": "x"}, "score": )",
                      self_test, R"(}]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], "results": [{"score": )",
                      score, R"(} for _ in request["items"]]}), flush=True)
)");
}
std::string Program(double score) { return Program(score, score); }

class JobRewardsTest : public testing::Test {
 protected:
  ~JobRewardsTest() override {
    if (rewards_ != nullptr) rewards_->Stop();
  }

  void Write(const std::string& text) { file_ = WritePlugin("job_rewards/mine.py", text); }

  job::v1::RewardEntry& AddEntry(const std::string& name, const std::string& verifier) {
    job::v1::RewardEntry& entry = *options_.reward.add_rewards();
    entry.set_name(name);
    entry.set_verifier(verifier);
    entry.set_weight(1);
    entry.mutable_timeout()->set_seconds(30);
    return entry;
  }
  void AddPlugin(const std::string& name, const std::string& reload = "auto") {
    auto& args = *AddEntry(name, "plugin").mutable_args()->mutable_fields();
    for (const std::string& word : {std::string("python3"), file_})
      args["exec"].mutable_list_value()->add_values()->set_string_value(word);
    args["processes"].set_number_value(1);
    args["reload"].set_string_value(reload);
  }

  void Start() {
    options_.job_name = "digits";
    if (options_.launch == nullptr) options_.launch = LaunchUnconfined;
    options_.folders = ProgramFolders();
    options_.watch_every = absl::Milliseconds(20);
    options_.on_event = [this](common::v1::Severity severity, const char* code,
                               const std::string& message) {
      events_.Push({code, message});
      severities_.Push(severity);
    };
    auto made = JobRewards::Make(std::move(options_));
    ASSERT_EQ(made.status(), absl::OkStatus());
    rewards_ = *std::move(made);
    rewards_->Follow([this](const std::shared_ptr<const Scorer>& scorer) { used_.Push(scorer); });
    ASSERT_EQ(used_.Pop(), rewards_->scorer());
  }
  // Waits until the plug-ins have started; until then they may read files that a test changes.
  void StartPlugins() {
    ASSERT_NO_FATAL_FAILURE(Start());
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    absl::StatusOr<uint32_t> capacity = 0;
    while (!capacity.ok() || *capacity == 0) {
      ASSERT_LT(absl::Now(), deadline) << capacity.status();
      capacity = rewards_->Capacity(8);
    }
  }

  // The same for candidates, whose plug-ins Capacity() does not wait for.
  void StartCandidates() {
    ASSERT_NO_FATAL_FAILURE(Start());
    const std::string name = rewards_->scorer()->shadows()[0]->name;
    while (!rewards_->scorer()->RunRule(name, {{.text = "x"}}, nlohmann::json::object(), "")[0]) {
    }
  }
  v1::Shadow ShadowOf(int reward) {
    v1::DescribeResponse described;
    rewards_->Describe(&described);
    return described.rewards(reward).shadow();
  }

  // The score of an answer by the scorer in use.
  double ScoreOne() {
    const Score score = rewards_->scorer()->Run({.text = "x"}, {{"answer", "x"}}, "digits");
    EXPECT_EQ(score.status, "ok") << score.info << score.fault;
    return score.task_reward;
  }

  absl::StatusOr<v1::ReloadResponse> Reload(const std::string& reward = "") {
    rewards_->Reload(reward, [this](absl::StatusOr<v1::ReloadResponse> answer) {
      answered_.Push(std::move(answer));
    });
    return answered_.Pop();
  }

  std::string file_;
  metrics::Registry registry_;
  JobRewards::Options options_;
  Handed<absl::StatusOr<v1::ReloadResponse>> answered_;
  Handed<std::pair<std::string, std::string>> events_;
  Handed<common::v1::Severity> severities_;  // Of events_.
  Handed<std::shared_ptr<const Scorer>> used_;
  std::unique_ptr<JobRewards> rewards_;
};

TEST_F(JobRewardsTest, AFileThatChangesBringsANewGenerationWhileTheOldOneGoesOn) {
  Write(Program(0.25));
  AddPlugin("mine");
  Start();
  const std::shared_ptr<const Scorer> old = rewards_->scorer();
  EXPECT_EQ(ScoreOne(), 0.25);
  rewards_->NoteScored(old, {.answers = {{.text = "x"}},
                             .row = nlohmann::json::object(),
                             .source = "digits",
                             .scores = {{"mine", {RuleScore{.score = 0.25}}}}});

  Write(Program(0.75));
  const std::shared_ptr<const Scorer> fresh = used_.Pop();
  EXPECT_NE(fresh->generation(), old->generation());
  EXPECT_NE(fresh->versions().at("mine"), old->versions().at("mine"));
  EXPECT_EQ(ScoreOne(), 0.75);
  EXPECT_EQ(old->Run({.text = "x"}, nlohmann::json::object(), "digits").task_reward, 0.25)
      << "groups that were begun are ended by it";
  EXPECT_TRUE(rewards_->CanScore(old->generation()));

  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "reward_reloaded");
  EXPECT_EQ(severities_.Pop(), common::v1::SEVERITY_INFO) << "nothing is wrong";
  EXPECT_THAT(message, HasSubstr("of 1 answers 0 have the same score, 1 a higher"));
}

TEST_F(JobRewardsTest, AVersionThatFailsItsSelfTestChangesNothingAndSaysSo) {
  Write(Program(0.25));
  AddPlugin("mine");
  StartPlugins();
  const std::shared_ptr<const Scorer> old = rewards_->scorer();

  Write(Program(0.75, /*self_test=*/0.5));
  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "reward_reload_failed");
  EXPECT_EQ(severities_.Pop(), common::v1::SEVERITY_WARNING);
  EXPECT_THAT(message, HasSubstr("its self-test 1 gave 0.75; wanted: 0.5"));
  EXPECT_EQ(rewards_->scorer(), old);
  EXPECT_EQ(ScoreOne(), 0.25);
  v1::DescribeResponse described;
  rewards_->Describe(&described);
  EXPECT_EQ(described.generation(), old->generation());
  EXPECT_THAT(described.rewards(0).message(), HasSubstr("the new version is not used"));

  // A person asks for it again, and then mends it.
  const auto again = Reload("mine");
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->rewards(0).outcome(), v1::RELOAD_OUTCOME_FAILED);
  EXPECT_EQ(again->rewards(0).after(), again->rewards(0).before());
  Write(Program(0.5));
  EXPECT_NE(used_.Pop(), old);
  EXPECT_EQ(ScoreOne(), 0.5);
  described.Clear();
  rewards_->Describe(&described);
  EXPECT_THAT(described.rewards(0).message(), IsEmpty());
}

TEST_F(JobRewardsTest, WithReloadManualAPersonAsksForNewFiles) {
  Write(Program(0.25));
  AddPlugin("mine", "manual");
  Start();
  const auto unchanged = Reload();
  ASSERT_EQ(unchanged.status(), absl::OkStatus());
  EXPECT_EQ(unchanged->rewards(0).outcome(), v1::RELOAD_OUTCOME_UNCHANGED);
  EXPECT_EQ(unchanged->generation(), rewards_->scorer()->generation());

  Write(Program(0.75));
  const auto loaded = Reload("mine");
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  EXPECT_EQ(loaded->rewards(0).outcome(), v1::RELOAD_OUTCOME_LOADED);
  EXPECT_NE(loaded->rewards(0).after(), loaded->rewards(0).before());
  EXPECT_EQ(loaded->generation(), rewards_->scorer()->generation());
  EXPECT_EQ(ScoreOne(), 0.75);
}

TEST_F(JobRewardsTest, WhoeverWaitsForNewFilesIsAnsweredInTimeThoughTheyHaveNotStarted) {
  Write(Program(0.25));
  AddPlugin("mine", "manual");
  options_.decide_within = absl::Milliseconds(1);
  StartPlugins();
  // The new version starts once there is a file `go`.
  const std::string go = file_ + ".go";
  std::filesystem::remove(go);
  Write(absl::StrCat("import os, time\nwhile not os.path.exists('", go, "'): time.sleep(0.01)\n",
                     Program(0.75)));

  // The second request waits for the first.
  for (int request = 0; request < 2; ++request) {
    const auto answer = Reload();
    ASSERT_EQ(answer.status(), absl::OkStatus());
    EXPECT_EQ(answer->rewards(0).outcome(), v1::RELOAD_OUTCOME_STARTING);
    EXPECT_EQ(answer->generation(), rewards_->scorer()->generation());
  }
  ASSERT_TRUE(WriteFileAtomic(go, "").ok());
  EXPECT_NE(used_.Pop(), nullptr);
  EXPECT_EQ(ScoreOne(), 0.75);
}

TEST_F(JobRewardsTest, NewFilesThatFindNoSandboxAreTriedAgain) {
  Write(Program(0.25));
  AddPlugin("mine");
  const auto taken = std::make_shared<std::atomic<bool>>(false);
  options_.launch =
      [taken](const PluginCommand& command) -> absl::StatusOr<std::unique_ptr<PluginChild>> {
    if (*taken) return absl::ResourceExhaustedError("all sandboxes are taken");
    return LaunchUnconfined(command);
  };
  options_.start_within = absl::Seconds(2);
  StartPlugins();
  *taken = true;
  Write(Program(0.75));
  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "reward_reload_failed");
  EXPECT_THAT(message, HasSubstr("they are tried again by themselves"));

  *taken = false;
  events_.PopUntil([](const auto& event) { return event.first == "reward_reloaded"; });
  EXPECT_EQ(ScoreOne(), 0.75);
}

TEST_F(JobRewardsTest, AFileThatComesBackBringsItsGenerationBack) {
  Write(Program(0.25));
  AddPlugin("mine", "manual");
  Start();
  const uint32_t first = rewards_->scorer()->generation();
  Write(Program(0.75));
  ASSERT_EQ(Reload().status(), absl::OkStatus());
  EXPECT_NE(rewards_->scorer()->generation(), first);
  Write(Program(0.25));
  ASSERT_EQ(Reload().status(), absl::OkStatus());
  EXPECT_EQ(rewards_->scorer()->generation(), first);
}

TEST_F(JobRewardsTest, AnOldGenerationWhoseProcessesAreGoneCannotScore) {
  Write(absl::StrCat(Program(0.25), "    sys.exit(0)\n"));  // Ends after its first answer.
  AddPlugin("mine", "manual");
  options_.reward.mutable_rewards(0)->mutable_timeout()->set_seconds(1);
  StartPlugins();
  const std::shared_ptr<const Scorer> old = rewards_->scorer();
  Write(Program(0.75));
  ASSERT_EQ(Reload().status(), absl::OkStatus());
  EXPECT_TRUE(rewards_->CanScore(old->generation()));
  // Its files are other ones now, so no process takes the place of the one that ends.
  while (rewards_->CanScore(old->generation()))
    (void)old->RunRule("mine", {{.text = "x"}}, nlohmann::json::object(), "digits");
  EXPECT_EQ(ScoreOne(), 0.75);
}

TEST_F(JobRewardsTest, WhatCannotBeLoadedAnewIsRefused) {
  Write(Program(0.25));
  AddPlugin("mine");
  AddEntry("right", "exact");
  Start();
  EXPECT_EQ(ReasonOf(Reload("right").status()), "REWARD");
  EXPECT_THAT(std::string(Reload("none").status().message()), HasSubstr("mine"));
}

TEST_F(JobRewardsTest, TheRewardsOfADeterministicJobNeverChange) {
  Write(Program(0.25));
  AddPlugin("mine");
  options_.deterministic = true;
  StartPlugins();
  Write(Program(0.75));
  EXPECT_EQ(ReasonOf(Reload().status()), "DETERMINISTIC");
  EXPECT_EQ(ScoreOne(), 0.25);
}

// Candidates. -------------------------------------------------------------------------------------

TEST_F(JobRewardsTest, ACandidateIsComparedAndHasNoPartInTheReward) {
  options_.metrics = Metrics(&registry_, "digits");
  AddEntry("right", "exact");
  job::v1::RewardEntry& candidate = AddEntry("new", "gsm8k");
  candidate.set_shadow("right");
  (*candidate.mutable_args()->mutable_fields())["extract"].set_string_value("flexible");
  Start();
  ASSERT_TRUE(rewards_->wants_scored());

  // exact wants the gold itself; gsm8k takes a number without the marker too.
  const std::vector<Answer> answers = {{.text = "4"}, {.text = "#### 4"}, {.text = "5"}};
  const nlohmann::json row = {{"answer", "#### 4"}};
  ScoredAnswers scored{.answers = answers, .row = row, .source = "digits", .scores = {}};
  for (const Answer& answer : answers) {
    const Score score = rewards_->scorer()->Run(answer, row, "digits");
    EXPECT_EQ(score.parts.size(), 1u) << "a candidate is no part";
    scored.scores["right"].push_back(RuleScore{.score = score.task_reward});
  }
  rewards_->NoteScored(rewards_->scorer(), scored);
  v1::DescribeResponse described;
  while (described.rewards_size() == 0 || described.rewards(1).shadow().equal() == 0) {
    described.Clear();
    rewards_->Describe(&described);
  }
  EXPECT_FALSE(described.rewards(0).has_shadow());
  const v1::Shadow& shadow = described.rewards(1).shadow();
  EXPECT_EQ(shadow.of(), "right");
  EXPECT_EQ(shadow.equal(), 2u);
  EXPECT_EQ(shadow.higher(), 1u);
  EXPECT_EQ(shadow.lower(), 0u);

  rewards_->Stop();
  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "shadow_compared");
  EXPECT_THAT(message, HasSubstr("candidate new of reward right: of 3 answers 2 have the same"));
}

TEST_F(JobRewardsTest, ACandidatesNewVersionIsComparedAfreshAndWithTheRewardThatItMayReplace) {
  AddEntry("right", "exact");
  Write(Program(0.25));
  AddPlugin("new", "manual");
  options_.reward.mutable_rewards(1)->set_shadow("right");
  StartCandidates();
  const ScoredAnswers scored{.answers = {{.text = "x"}},
                             .row = {{"answer", "x"}},
                             .source = "digits",
                             .scores = {{"right", {RuleScore{.score = 1}}}}};
  const std::shared_ptr<const Scorer> old = rewards_->scorer();
  rewards_->NoteScored(old, scored);
  while (ShadowOf(1).lower() == 0) {
  }
  const v1::Shadow before = ShadowOf(1);

  Write(Program(1));
  const auto loaded = Reload("new");
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  EXPECT_EQ(loaded->rewards(0).message(),
            "compared with reward right, of 1 answers 1 have the same score, 0 a higher and 0 a "
            "lower one, mean difference +0.0000");
  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "shadow_compared") << "the counts of the old version";
  EXPECT_THAT(message, HasSubstr("0 a higher and 1 a lower one"));

  EXPECT_EQ(ShadowOf(1).lower(), 0u);
  EXPECT_GE(rpc::FromProto(ShadowOf(1).since()), rpc::FromProto(before.since()));
  rewards_->NoteScored(old, scored);  // A group that was begun by the old version.
  rewards_->NoteScored(rewards_->scorer(), scored);
  while (ShadowOf(1).equal() == 0) {
  }
  EXPECT_EQ(ShadowOf(1).lower(), 0u);
}

TEST_F(JobRewardsTest, ItsBrokenPluginStopsNoLeasing) {
  Write("raise SystemExit('no such module')\n");
  AddEntry("right", "exact");
  AddPlugin("new");
  options_.reward.mutable_rewards(1)->set_shadow("right");
  Start();
  const auto [code, message] = events_.Pop();
  EXPECT_EQ(code, "shadow_broken");
  EXPECT_THAT(message, HasSubstr("no such module"));
  EXPECT_EQ(*rewards_->Capacity(7), 7u);
  EXPECT_EQ(rewards_->broken(), absl::OkStatus());
}

TEST(ShadowsTest, LargeAnswersThatWaitTakeNoMoreThanTheirShareOfMemory) {
  metrics::Registry registry;
  Shadows shadows(Metrics(&registry, "digits"));
  const auto scorer = std::make_shared<const Scorer>(
      *Scorer::Make({{.name = "right", .verifier = "exact"},
                     {.name = "new", .verifier = "exact", .shadow = "right"}},
                    Combine::kSum));
  shadows.Add(scorer, {.answers = {{.text = std::string(Shadows::kMostBytes, 'x')}},
                       .row = nlohmann::json::object(),
                       .source = "digits",
                       .scores = {{"right", {RuleScore{.score = 1}}}}});
  EXPECT_EQ(shadows.results().at("new").skipped, 1u);
}

TEST(ShadowsTest, TheyCountHowTheirScoresCompare) {
  metrics::Registry registry;
  const Metrics metrics(&registry, "digits");
  Shadows shadows(metrics);
  // The candidate is slow, so that answers pile up behind the first: they are skipped.
  Handed<int> asked, go;
  Scorer made = *Scorer::Make(
      {{.name = "right", .verifier = "exact"},
       {.name = "new", .verifier = "plugin", .shadow = "right", .args = {{"verl", "/r.py:f"}}}},
      Combine::kSum,
      {.run_plugin = [&](const std::string&, const std::vector<nlohmann::json>& items,
                         absl::Duration) -> absl::StatusOr<std::vector<PluginResult>> {
        asked.Push(0);
        go.Pop();
        if (items[0]["completion"] == "unscorable")
          return std::vector<PluginResult>{PluginResult{.error = "no"}};
        return std::vector<PluginResult>{PluginResult{.score = 1}};
      }});
  const auto scorer = std::make_shared<const Scorer>(std::move(made));
  const auto add = [&](const std::string& text, std::optional<double> used) {
    std::optional<RuleScore> given;
    if (used) given = RuleScore{.score = *used};
    shadows.Add(scorer, {.answers = {{.text = text}},
                         .row = nlohmann::json::object(),
                         .source = "digits",
                         .scores = {{"right", {given}}}});
  };
  add("higher", 0.5);
  asked.Pop();
  add("equal", 1);
  add("lower", 2.5);
  add("unscorable", 1);
  add("was unscorable itself", std::nullopt);
  for (size_t i = 4; i < Shadows::kMostWaiting + 2; ++i) add("equal", 1);
  EXPECT_EQ(shadows.results().at("new").skipped, 2u);
  for (int i = 0; i < 6; ++i) {
    go.Push(0);
    asked.Pop();
  }
  const Comparison seen = shadows.results().at("new").comparison;
  EXPECT_EQ(shadows.results().at("new").of, "right");
  EXPECT_EQ(seen.higher, 1u);
  EXPECT_GE(seen.equal, 1u);
  EXPECT_EQ(seen.lower, 1u);
  EXPECT_EQ(seen.unscorable, 1u);
  EXPECT_DOUBLE_EQ(seen.difference, 0.5 - 1.5);
  EXPECT_DOUBLE_EQ(seen.distance, 0.5 + 1.5);
  EXPECT_EQ(metrics.Shadow("new", "higher").value(), 1);
  EXPECT_EQ(metrics.Shadow("new", "skipped").value(), 2);
  EXPECT_DOUBLE_EQ(metrics.ShadowDistance("new").value(), 2);
  for (size_t i = 0; i < Shadows::kMostWaiting + 10; ++i) go.Push(0);
}

// A rule that has a judge score each step, whose replies come from `replies`, in order.
Scorer StepScorer(std::deque<std::string>* replies) {
  return *Scorer::Make(
      {{.name = "right", .verifier = "exact"},
       {.name = "new",
        .verifier = "judge",
        .shadow = "right",
        .args = {{"judge", "j"}, {"template", "prm"}, {"votes", 1}}}},
      Combine::kSum,
      {.ask_judge = [replies](const std::string&, const std::string&, const std::string&,
                              absl::Duration) -> absl::StatusOr<std::string> {
        std::string reply = replies->front();
        replies->pop_front();
        return reply;
      }});
}

TEST(ComparisonTest, RewardsOfStepsAreComparedByPlaceAndValue) {
  // The steps of the answer end at bytes 5 and 9.
  std::deque<std::string> replies;
  const Scorer scorer = StepScorer(&replies);
  Comparison comparison;
  const auto compare = [&](const std::string& reply, RuleScore used) {
    replies.push_back(reply);
    comparison.Add({.answers = {{.text = "6 * 7\n\n42"}},
                    .row = {{"prompt", "q"}, {"answer", "42"}},
                    .source = "x",
                    .scores = {{"right", {std::move(used)}}}},
                   "right", scorer, "new");
  };
  // The candidate gives each step half of its score, between 0 and 10.
  compare("{\"scores\": [10, 5]}", {.score = 0.75, .credits = {{5, 0.5}, {9, 0.25}}});
  EXPECT_EQ(comparison.same_steps, 1u);
  EXPECT_EQ(comparison.step_distance, 0);

  // The same sum, but not of the same steps: scores alone would call it equal.
  compare("{\"scores\": [5, 10]}", {.score = 0.75, .credits = {{5, 0.5}, {9, 0.25}}});
  EXPECT_EQ(comparison.equal, 2u);
  EXPECT_EQ(comparison.other_values, 1u);
  EXPECT_DOUBLE_EQ(comparison.step_distance, 0.5);

  compare("{\"scores\": [10, 5]}", {.score = 0.75, .credits = {{3, 0.5}, {9, 0.25}}});
  EXPECT_EQ(comparison.other_places, 1u);
  EXPECT_DOUBLE_EQ(comparison.step_distance, 1.5);

  // A reward without steps lies at the end of the answer.
  compare("{\"scores\": [10, 10]}", {.score = 1});
  EXPECT_EQ(comparison.other_places, 2u);
  EXPECT_DOUBLE_EQ(comparison.step_distance, 3.5);
  EXPECT_EQ(
      comparison.Describe(),
      "of 4 answers 4 have the same score, 0 a higher and 0 a lower one, mean difference "
      "+0.0000; of 4 answers with rewards of steps 1 have the same ones, 1 others at the same "
      "places and 2 at other places, mean distance 0.8750");
}

TEST(ShadowsTest, TheyCountHowRewardsOfStepsCompare) {
  metrics::Registry registry;
  const Metrics metrics(&registry, "digits");
  std::deque<std::string> replies = {"{\"scores\": [10, 5]}"};
  Shadows shadows(metrics);
  shadows.Add(std::make_shared<const Scorer>(StepScorer(&replies)),
              {.answers = {{.text = "6 * 7\n\n42"}},
               .row = {{"prompt", "q"}, {"answer", "42"}},
               .source = "x",
               .scores = {{"right", {RuleScore{.score = 0.75}}}}});
  // There is a result, without an answer, before the comparison.
  const auto steps = [&] {
    const Shadows::Results results = shadows.results();
    const auto it = results.find("new");
    return it == results.end() ? 0 : it->second.comparison.stepped();
  };
  while (steps() == 0) std::this_thread::yield();
  EXPECT_EQ(shadows.results().at("new").comparison.other_places, 1u);
  EXPECT_EQ(metrics.ShadowSteps("new", "other_places").value(), 1);
  EXPECT_DOUBLE_EQ(metrics.ShadowStepDistance("new").value(), 1.5);
}

}  // namespace
}  // namespace sluice::reward
