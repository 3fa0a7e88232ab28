#include "services/reward/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "tests/common/queue_client/fake_queue.h"

namespace sluice::reward {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kMessages[] = R"([{"role": "assistant", "content": "42"}])";

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() {
    served_.queue.on_renew = [](const queue::v1::RenewRequest&, queue::v1::RenewResponse* answer) {
      *answer->mutable_ttl() = rpc::ToProto(absl::Hours(1));
      return absl::OkStatus();
    };
    served_.queue.on_release = [this](const queue::v1::ReleaseRequest& request) {
      released_.Push({request.leases().begin(), request.leases().end()});
      releases_.Push(request);
      return absl::OkStatus();
    };
    served_.queue.on_put = [this](FakeQueue::PutStreamEnd& stream,
                                  const queue::v1::PutHeader& header, const std::string&) {
      for (const common::v1::Record& record : header.records()) scored_.Push(record.lease());
      stream.Ack(header.seq());
    };
  }

  ~WorkerTest() override {
    if (worker_ != nullptr) worker_->Stop();
  }

  // The task of one member. Its answer is in the task, or has to be read from the queue.
  static queue::v1::Task TaskOf(uint32_t member, bool with_answer) {
    queue::v1::Task task;
    task.set_id(absl::StrCat("task ", member));
    task.mutable_owner()->set_group(std::string(16, 'g'));
    task.mutable_owner()->set_member(member);
    task.mutable_row()->set_json(R"({"prompt": "6 * 7", "answer": "42"})");
    task.set_tries(3);
    task.mutable_lease()->set_id(absl::StrCat("lease ", member));
    task.set_finish(common::v1::FINISH_STOP);

    if (with_answer) {
      common::v1::Field& field = *task.add_fields();
      field.set_name("messages");
      field.set_inline_(kMessages);
    } else {
      *task.add_wants()->mutable_owner() = task.owner();
    }
    return task;
  }

  // The next call of LeaseTasks gets these tasks.
  void Lease(const std::vector<queue::v1::Task>& tasks) {
    queue::v1::LeaseTasksResponse response;
    response.mutable_tasks()->Add(tasks.begin(), tasks.end());
    served_.queue.task_leases.push_back(response);
  }

  void Start(Worker::Options options = {}) {
    served_.Start();
    Scorer scorer = *Scorer::Make({{.name = "right", .verifier = "exact"}}, Combine::kSum);
    StartWith(std::move(scorer), std::move(options));
  }

  // Starts a worker whose answers a judge scores, `waiting` at a time.
  void StartJudged(AskJudge ask, uint32_t waiting,
                   std::function<absl::StatusOr<uint32_t>()> capacity = nullptr) {
    served_.Start();
    Scorer scorer =
        *Scorer::Make({{.name = "right",
                        .verifier = "judge",
                        .args = {{"judge", "strict"}, {"template", "rubric"}, {"rubric", "r"}}}},
                      Combine::kSum, {.ask_judge = std::move(ask)});
    StartWith(std::move(scorer),
              {.pool = "io", .waiting = waiting, .capacity = std::move(capacity)});
  }

  void StartWith(Scorer scorer, Worker::Options options) {
    options.job = "job";
    options.job_name = "digits";
    options.worker = "reward-0";
    worker_ = std::make_unique<Worker>(
        std::move(options), *rpc::Connect(served_.server->address(), {rpc::Role::kQueue}),
        std::make_shared<const Scorer>(std::move(scorer)), Metrics(),
        [this](absl::Status why) { failed_.Push(why); });
  }

  // The server's threads fill these, so they are destroyed after it.
  Handed<std::vector<std::string>> released_;
  Handed<queue::v1::ReleaseRequest> releases_;
  Handed<std::string> scored_;
  Handed<absl::Status> failed_;
  Handed<queue::v1::LeaseTasksRequest> calls_;
  Handed<std::pair<std::string, uint32_t>> put_;  // Lease and generation.
  Handed<int> scoring_, go_;
  Served served_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerTest, TasksWhoseAnswersCannotBeReadNowAreGivenBackAndScoredLater) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    stream.End(Error(absl::StatusCode::kFailedPrecondition, "RESTORE_FIRST", "restore first"));
  };
  Lease({TaskOf(0, false), TaskOf(1, false)});
  Lease({TaskOf(0, true), TaskOf(1, true)});
  Start();

  EXPECT_THAT(released_.Pop(), ElementsAre("lease 0", "lease 1"));
  EXPECT_EQ(scored_.Pop(), "lease 0");
  EXPECT_EQ(scored_.Pop(), "lease 1");
}

TEST_F(WorkerTest, AnAnswerThatCanNeverBeReadEndsTheWorkAndKeepsNoLease) {
  served_.queue.on_get = [](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    stream.End(Error(absl::StatusCode::kAborted, "FENCED", "another process has this id"));
  };
  Lease({TaskOf(0, false)});
  Start();

  EXPECT_EQ(ReasonOf(failed_.Pop()), "FENCED");
  EXPECT_THAT(released_.Pop(), ElementsAre("lease 0"));
}

TEST_F(WorkerTest, ScoresThatWaitForAJudgeDoNotWaitForEachOther) {
  Lease({TaskOf(0, true), TaskOf(1, true), TaskOf(2, true)});
  Handed<int> asked;
  Mutex mu;
  CondVar all_asked;
  int count = 0;
  StartJudged(
      [&](const std::string&, const std::string&, const std::string&,
          absl::Duration) -> absl::StatusOr<std::string> {
        // No judgement is given before three answers are being judged.
        MutexLock lock(&mu);
        ++count;
        all_asked.NotifyAll();
        while (count < 3) all_asked.Wait(&mu);
        return "{\"score\": 7}";
      },
      3);
  const std::set<std::string> scored = {scored_.Pop(), scored_.Pop(), scored_.Pop()};
  EXPECT_THAT(scored, ElementsAre("lease 0", "lease 1", "lease 2"));
}

TEST_F(WorkerTest, AStepsScoreGoesToTheTokenThatEndsIt) {
  // "42" of one token, a blank line of two, and "b" with an end token.
  queue::v1::Task task = TaskOf(0, true);
  task.mutable_fields(0)->set_inline_(R"([{"role": "assistant", "content": "42\n\nb"}])");
  const uint32_t ends[] = {7, 2, 8, 3, 9, 4, 10, 5, 11, 5};
  common::v1::Field& field = *task.add_fields();
  field.set_name("answer_ends");
  field.set_inline_({reinterpret_cast<const char*>(ends), sizeof ends});
  // The second task's tokens are those of another text.
  queue::v1::Task other = task;
  other.set_id("task 1");
  other.mutable_lease()->set_id("lease 1");
  other.mutable_fields(0)->set_inline_(R"([{"role": "assistant", "content": "42\n\nbc"}])");
  Lease({other, task});

  Handed<std::vector<double>> rewards;
  served_.queue.on_put = [&](FakeQueue::PutStreamEnd& stream, const queue::v1::PutHeader& header,
                             const std::string& payload) {
    size_t at = 0;
    for (const common::v1::Record& record : header.records()) {
      for (const common::v1::Field& put : record.fields()) {
        if (put.name() == "rew_tok") {
          std::vector<double> rows(put.bytes() / sizeof(double));
          std::memcpy(rows.data(), payload.data() + at, put.bytes());
          rewards.Push(rows);
        }
        if (put.inline_().empty()) at += put.bytes();
      }
    }
    stream.Ack(header.seq());
  };
  served_.Start();
  Scorer scorer =
      *Scorer::Make({{.name = "steps",
                      .verifier = "judge",
                      .args = {{"judge", "strict"}, {"template", "prm"}, {"votes", 1}}}},
                    Combine::kSum,
                    {.ask_judge = [](const std::string&, const std::string&, const std::string&,
                                     absl::Duration) -> absl::StatusOr<std::string> {
                      return "{\"scores\": [10, 5]}";
                    }});
  StartWith(std::move(scorer), {.pool = "io", .waiting = 1});

  EXPECT_THAT(released_.Pop(), ElementsAre("lease 1"));
  EXPECT_THAT(rewards.Pop(), ElementsAre(7, 0.5, 10, 0.25));
}

TEST_F(WorkerTest, AGroupIsScoredAtOnceAndItsTaskEndsWithARecordOfTheGroup) {
  queue::v1::Task task = TaskOf(0, false);
  task.mutable_owner()->clear_member();
  task.clear_wants();
  task.clear_finish();
  for (uint32_t member : {0, 2, 3}) {
    common::v1::TrajectoryRef& ref = *task.add_members();
    ref.set_group(task.owner().group());
    ref.set_member(member);
    *task.add_wants()->mutable_owner() = ref;
    task.add_finishes(member == 2 ? common::v1::FINISH_LENGTH : common::v1::FINISH_STOP);
  }
  Lease({task});
  // Member 3 was dropped meanwhile.
  served_.queue.on_get = [&](FakeQueue::GetStream& stream, const queue::v1::GetRequest&) {
    queue::v1::GetHeader header;
    for (uint32_t member : {0, 2}) {
      common::v1::Record& record = *header.add_records();
      record.mutable_owner()->set_group(task.owner().group());
      record.mutable_owner()->set_member(member);
      AddInlineField("messages", common::v1::DTYPE_UNSPECIFIED, kMessages, &record);
    }
    header.set_end(true);
    stream.Send(*rpc::EncodeFrame(header, {}));
    stream.End(absl::OkStatus());
  };
  Handed<common::v1::Record> records;
  served_.queue.on_put = [&](FakeQueue::PutStreamEnd& stream, const queue::v1::PutHeader& header,
                             const std::string&) {
    for (const common::v1::Record& record : header.records()) records.Push(record);
    stream.Ack(header.seq());
  };

  served_.Start();
  Handed<std::vector<nlohmann::json>> asked;
  Scorer scorer =
      *Scorer::Make({{.name = "mine",
                      .verifier = "plugin",
                      .scores_groups = true,
                      .args = {{"trl", "/rewards/mine.py:score"}}}},
                    Combine::kSum,
                    {.run_plugin = [&](const std::string&, const std::vector<nlohmann::json>& items,
                                       absl::Duration) {
                      asked.Push(items);
                      return std::vector<PluginResult>(items.size(), PluginResult{.score = 3});
                    }});
  StartWith(std::move(scorer), {.pool = "io", .waiting = 2});

  const std::vector<nlohmann::json> items = asked.Pop();
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0]["truncated"], false);
  EXPECT_EQ(items[1]["truncated"], true);
  for (uint32_t member : {0, 2}) {
    const common::v1::Record record = records.Pop();
    EXPECT_EQ(record.owner().member(), member);
    EXPECT_EQ(record.fields(0).inline_(), "ok");
    EXPECT_FALSE(record.last());
  }
  const common::v1::Record end = records.Pop();
  EXPECT_FALSE(end.owner().has_member());
  EXPECT_TRUE(end.last());
  EXPECT_EQ(end.fields_size(), 0);
}

TEST_F(WorkerTest, AGroupWhoseRowIsNoneIsNotScoredAtAll) {
  queue::v1::Task task = TaskOf(0, true);
  task.mutable_row()->set_json("no row");
  Lease({task});
  Handed<common::v1::Record> records;
  served_.queue.on_put = [&](FakeQueue::PutStreamEnd& stream, const queue::v1::PutHeader& header,
                             const std::string&) {
    for (const common::v1::Record& record : header.records()) records.Push(record);
    stream.Ack(header.seq());
  };
  served_.Start();
  std::atomic<int> asked = 0;
  Scorer scorer =
      *Scorer::Make({{.name = "mine",
                      .verifier = "plugin",
                      .scores_groups = true,
                      .args = {{"trl", "/rewards/mine.py:score"}}}},
                    Combine::kSum,
                    {.run_plugin = [&](const std::string&, const std::vector<nlohmann::json>& items,
                                       absl::Duration) {
                      ++asked;
                      return std::vector<PluginResult>(items.size(), PluginResult{.score = 3});
                    }});
  StartWith(std::move(scorer), {.pool = "io", .waiting = 2});
  EXPECT_EQ(records.Pop().fields(0).inline_(), "bad_row");
  EXPECT_EQ(asked, 0);
}

TEST_F(WorkerTest, NoMoreTasksAreLeasedThanThreadsAreFree) {
  Handed<uint32_t> rooms;
  served_.queue.on_lease_tasks = [&](const queue::v1::LeaseTasksRequest& request) {
    EXPECT_EQ(request.rooms(0).pool(), "io");
    rooms.Push(request.rooms(0).count());
  };
  Lease({TaskOf(0, true), TaskOf(1, true)});
  Handed<int> go_on;
  StartJudged(
      [&](const std::string&, const std::string&, const std::string&,
          absl::Duration) -> absl::StatusOr<std::string> {
        go_on.Pop();
        return "{\"score\": 7}";
      },
      2);
  EXPECT_EQ(rooms.Pop(), 2u);
  go_on.Push(0);  // One of the two is judged, so there is room for one.
  scored_.Pop();
  EXPECT_EQ(rooms.Pop(), 1u);
  go_on.Push(0);
  scored_.Pop();
}

TEST_F(WorkerTest, NoMoreTasksAreLeasedThanTheJudgeBears) {
  Handed<uint32_t> rooms;
  served_.queue.on_lease_tasks = [&](const queue::v1::LeaseTasksRequest& request) {
    rooms.Push(request.rooms(0).count());
  };
  StartJudged([](const std::string&, const std::string&, const std::string&,
                 absl::Duration) -> absl::StatusOr<std::string> { return "{\"score\": 7}"; },
              256, [] { return 3; });
  EXPECT_EQ(rooms.Pop(), 3u);
}

TEST_F(WorkerTest, AFaultOfTheJudgeUsesATryAndABusyJudgeDoesNot) {
  Lease({TaskOf(0, true)});
  Lease({TaskOf(1, true)});
  Lease({TaskOf(2, true)});
  std::atomic<int> calls = 0;
  StartJudged(
      [&](const std::string&, const std::string&, const std::string&,
          absl::Duration) -> absl::StatusOr<std::string> {
        switch (++calls) {
          case 1: return absl::UnavailableError("HTTP status 500");
          case 2: return absl::ResourceExhaustedError("too many calls");
          default: return "{\"score\": 10}";
        }
      },
      1);
  const queue::v1::ReleaseRequest fault = releases_.Pop(), busy = releases_.Pop();
  EXPECT_THAT(fault.leases(), ElementsAre("lease 0"));
  EXPECT_EQ(fault.reason(), queue::v1::RELEASE_REASON_FAULT);
  EXPECT_EQ(rpc::FromProto(fault.not_before()), absl::Seconds(7.5));
  EXPECT_THAT(fault.cause(), HasSubstr("HTTP status 500")) << "people see it at a dead letter";
  EXPECT_THAT(busy.leases(), ElementsAre("lease 1"));
  EXPECT_EQ(busy.reason(), queue::v1::RELEASE_REASON_DRAIN);
  EXPECT_EQ(rpc::FromProto(busy.not_before()), absl::Seconds(5));
  EXPECT_EQ(scored_.Pop(), "lease 2");
}

TEST_F(WorkerTest, AWorkerThatStopsGivesBackWhatItsJudgeHasNotScored) {
  Lease({TaskOf(0, true)});
  rpc::Cancel stop;
  Handed<int> asked;
  served_.Start();
  Scorer scorer = *Scorer::Make(
      {{.name = "right", .verifier = "judge", .args = {{"judge", "strict"}}}}, Combine::kSum,
      {.ask_judge = [&](const std::string&, const std::string&, const std::string&,
                        absl::Duration) -> absl::StatusOr<std::string> {
        asked.Push(0);
        stop.WaitFor(absl::InfiniteDuration());
        return absl::CancelledError("stopped");
      }});
  StartWith(std::move(scorer), {.pool = "io", .waiting = 4, .on_stop = [&] { stop.Trigger(); }});
  asked.Pop();
  worker_->Stop();
  EXPECT_THAT(released_.Pop(), ElementsAre("lease 0"));
}

TEST_F(WorkerTest, AJudgeWithoutBudgetStopsTheLeasingAndTheReasonIsShown) {
  Lease({TaskOf(0, true)});
  Handed<int> checked;
  std::atomic<bool> spent = true;
  StartJudged([](const std::string&, const std::string&, const std::string&,
                 absl::Duration) -> absl::StatusOr<std::string> { return "{\"score\": 1}"; },
              1,
              [&]() -> absl::StatusOr<uint32_t> {
                checked.Push(0);
                if (spent) return absl::ResourceExhaustedError("judge strict has used 7 tokens");
                return 1;
              });
  checked.Pop();
  std::vector<common::v1::WaitEdge> edges;
  while (edges.empty()) edges = worker_->Explain();
  EXPECT_EQ(edges[0].cause(), "reward-0 scores nothing: judge strict has used 7 tokens");
  spent = false;
  EXPECT_EQ(scored_.Pop(), "lease 0");
}

// Generations. ------------------------------------------------------------------------------------

uint32_t GenerationPut(const common::v1::Record& record) {
  for (const common::v1::Field& field : record.fields()) {
    if (field.name() != "reward_gen") continue;
    uint32_t generation = 0;
    std::memcpy(&generation, field.inline_().data(), sizeof generation);
    return generation;
  }
  return 0;
}

TEST_F(WorkerTest, GroupsOfAnEarlierGenerationAreEndedByItUntilThereAreNone) {
  const auto make = [](const char* name) {
    return std::make_shared<const Scorer>(
        *Scorer::Make({{.name = name, .verifier = "exact"}}, Combine::kSum));
  };
  const std::shared_ptr<const Scorer> old = make("old"), fresh = make("fresh");
  const uint32_t before = old->generation(), after = fresh->generation();

  // The queue answers each call when the test has looked at it.
  served_.queue.on_lease_tasks = [this](const queue::v1::LeaseTasksRequest& request) {
    calls_.Push(request);
    go_.Pop();
  };
  served_.queue.on_put = [this](FakeQueue::PutStreamEnd& stream, const queue::v1::PutHeader& header,
                                const std::string&) {
    for (const common::v1::Record& record : header.records())
      put_.Push({record.lease(), GenerationPut(record)});
    stream.Ack(header.seq());
  };
  queue::v1::Task begun = TaskOf(0, true), fresh_task = TaskOf(1, true);
  begun.set_generation(before);
  fresh_task.set_generation(after);
  Lease({begun});
  queue::v1::LeaseTasksResponse last;
  *last.add_tasks() = fresh_task;
  last.add_unused(before);
  served_.queue.task_leases.push_back(last);
  Lease({fresh_task});

  served_.Start();
  StartWith(*old, {});
  queue::v1::LeaseTasksRequest call = calls_.Pop();
  EXPECT_EQ(call.generation(), before);
  EXPECT_EQ(call.earlier_size(), 0);
  ASSERT_EQ(call.rewards_size(), 1);
  EXPECT_EQ(call.rewards(0).name(), "old");
  EXPECT_EQ(call.rewards(0).version(), old->versions().at("old"));

  worker_->UseScorer(fresh);
  go_.Push(0);
  EXPECT_EQ(put_.Pop(), std::pair(std::string("lease 0"), before));
  call = calls_.Pop();
  EXPECT_EQ(call.generation(), after);
  EXPECT_THAT(call.earlier(), ElementsAre(before));

  go_.Push(0);
  EXPECT_EQ(put_.Pop(), std::pair(std::string("lease 1"), after));
  call = calls_.Pop();
  EXPECT_EQ(call.earlier_size(), 0) << "nobody needs it any more";
  EXPECT_THAT(worker_->generations(), ElementsAre(after));
  for (int i = 0; i < 100; ++i) go_.Push(0);
}

TEST_F(WorkerTest, AGenerationWhosePluginsAreGoneIsNotAskedFor) {
  served_.queue.on_lease_tasks = [this](const queue::v1::LeaseTasksRequest& request) {
    calls_.Push(request);
  };
  Lease({TaskOf(0, true)});
  Worker::Options options{.can_score = [](uint32_t) { return false; }};
  options.on_scored = [this](const std::shared_ptr<const Scorer>&, const ScoredAnswers& scored) {
    EXPECT_EQ(scored.answers.at(0).text, "42");
    ASSERT_EQ(scored.scores.at("right").size(), 1u);
    EXPECT_EQ(scored.scores.at("right")[0]->score, 1);
    scoring_.Push(0);
    go_.Pop();
  };
  Start(std::move(options));
  calls_.Pop();
  scoring_.Pop();  // Now there is no call, so that the next one is by the new scorer.
  worker_->UseScorer(std::make_shared<const Scorer>(
      *Scorer::Make({{.name = "fresh", .verifier = "exact"}}, Combine::kSum)));
  go_.Push(0);
  EXPECT_EQ(calls_.Pop().earlier_size(), 0);
}

}  // namespace
}  // namespace sluice::reward
