#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/config/job_file.h"
#include "common/queue_client/queue_client.h"
#include "common/testing/data.h"
#include "services/controller/spec.h"
#include "services/reward/worker.h"
#include "tests/integration/queue_scene.h"

namespace sluice::integration {
namespace {

// The tasks of the GSM8K example. The test is a rollout that writes the answer of the data set or
// another one, and a real reward worker scores it.
class GoldAnswerTest : public QueueScene {
 protected:
  void SetUp() override {
    SLUICE_NEEDS_TEST_DATA("gsm8k/test.jsonl");
    ASSERT_EQ(cluster_.Start(), absl::OkStatus());
    const JobFile file = ReadJobFile(
        SLUICE_SOURCE_DIR "/configs/examples/gsm8k.yaml",
        {.sets = {absl::StrCat("model.path=", testing_data::Path("models/qwen3-tiny")),
                  absl::StrCat("data.train.0.path=", testing_data::Path("gsm8k/test.jsonl")),
                  "queue.groups_per_step=2", "queue.max_staleness=0", "rollout.group.size=2",
                  "rollout.group.min=2"}});
    ASSERT_EQ(ProblemStatus(file.problems), absl::OkStatus());
    spec_ = controller::QueueSpecOf(*file.spec);
    SetUpJob();
  }

  // Writes and seals a member whose last message is `text`.
  void PutAnswer(const queue::v1::Grant& grant, int member, const std::string& text) {
    std::string payload;
    common::v1::Record record = SampledRecord(grant, member, 3, {7, 8, 2}, &payload);
    Put(record, payload);

    queue::v1::SealRequest seal;
    *seal.mutable_call() = CallOf(rollout_);
    queue::v1::SealItem& item = *seal.add_items();
    *item.mutable_ref() = record.owner();
    item.set_lease(record.lease());
    item.set_tokens(6);
    item.set_crc32c(Crc32c(payload));
    item.set_finish(common::v1::FINISH_STOP);
    item.set_turns(1);

    record.clear_piece();
    record.clear_fields();
    payload.clear();
    AddField("messages", common::v1::DTYPE_UNSPECIFIED, {},
             nlohmann::json::array({{{"role", "assistant"}, {"content", text}}}).dump(), &record,
             &payload);
    Put(record, payload);

    queue::v1::SealResponse sealed;
    ASSERT_EQ(rpc::Call(queue(), seal, &sealed), absl::OkStatus());
    ASSERT_EQ(sealed.items(0).code(), 0U) << sealed.DebugString();
  }

  void Put(const common::v1::Record& record, const std::string& payload) {
    const auto ack = PutOnce(CallOf(rollout_), record, payload);
    ASSERT_EQ(ack.status(), absl::OkStatus());
    ASSERT_EQ(ack->failed_size(), 0) << ack->DebugString();
  }
};

TEST_F(GoldAnswerTest, TheGoldAnswerScoresOneAndAnotherNumberZero) {
  const queue::v1::AdmitResponse granted = Admit();
  ASSERT_EQ(granted.grants_size(), 2);
  for (const queue::v1::Grant& grant : granted.grants()) {
    std::string payload;
    const common::v1::Record prompt = PromptRecord(grant, {1, 5, 6}, &payload);
    Put(prompt, payload);
    PutAnswer(grant, 0, nlohmann::json::parse(grant.row().json()).at("answer"));
    PutAnswer(grant, 1, "#### 123456789");
  }

  auto scorer = Scorer::Make({{.name = "gsm8k", .verifier = "gsm8k"}}, Combine::kSum);
  ASSERT_EQ(scorer.status(), absl::OkStatus());
  reward::Worker worker(
      {.job = job_, .job_name = "gold", .worker = reward_, .incarnation = kIncarnation},
      cluster_.channel("queue-0"), std::make_shared<const Scorer>(*std::move(scorer)), {},
      [](const absl::Status& why) { ADD_FAILURE() << why; });

  queue::v1::AcquireBatchRequest acquire;
  *acquire.mutable_call() = CallOf(trainer_);
  queue::v1::AcquireBatchResponse batch;
  ASSERT_EQ(rpc::Call(queue(), acquire, &batch), absl::OkStatus());  // Parks until all are scored.

  ASSERT_EQ(batch.batch().groups_size(), 2);
  for (const queue::v1::BatchGroup& group : batch.batch().groups()) {
    for (const queue::v1::BatchMember& member : group.members()) {
      bool scored = false;
      for (const common::v1::Field& field : member.fields()) {
        if (field.name() != "task_reward") continue;
        double reward = -1;
        ASSERT_EQ(field.inline_().size(), sizeof reward);
        std::memcpy(&reward, field.inline_().data(), sizeof reward);
        EXPECT_EQ(reward, member.member() == 0 ? 1 : 0) << group.row().DebugString();
        scored = true;
      }

      EXPECT_TRUE(scored) << member.DebugString();
    }
  }
  worker.Stop();
}

}  // namespace
}  // namespace sluice::integration
