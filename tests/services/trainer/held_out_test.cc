// Rows that are scored and not trained on, against the same numbers computed row by row with torch.

#include "services/trainer/core/held_out.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/models/train_model.h"
#include "tests/services/trainer/pairs_fixture.h"
#include "tests/services/trainer/rank_group.h"

namespace sluice::trainer {
namespace {

Settings SftSettings() {
  Settings settings;
  settings.kind = Settings::Kind::kSft;
  settings.optimizer.lr = 1e-2;
  return settings;
}

class HeldOutTest : public TrainerTest {
 protected:
  static HeldOutSums Evaluate(Trainer& trainer, const std::vector<Group>& rows) {
    absl::StatusOr<HeldOutSums> sums = trainer.Evaluate(rows);
    EXPECT_TRUE(sums.ok()) << sums.status();
    return sums.value_or(HeldOutSums());
  }

  // The log-prob of an answer under some weights, in fp64.
  double SlowLogprob(const TensorSet& weights, const Trajectory& answer) {
    const auto model = *TrainModel::Create(model_.config, DType::kF32);
    EXPECT_TRUE(model->Load(weights).ok());
    const AloneBatch alone = PackAlone(answer);
    const at::Tensor z = at::log_softmax(model->Logits(alone.packed)->to(at::kDouble), -1);
    return z.gather(1, at::tensor(alone.targets).unsqueeze(1)).sum().item<double>();
  }
};

TEST_F(HeldOutTest, TheLossOfDemonstrationsIsTheMeanOverAllTheirTokens) {
  const auto trainer = Make(SftSettings());
  const std::vector<Group> rows = Pairs(7, 9, /*answers=*/1);
  double nll = 0;
  int64_t tokens = 0;
  for (const Group& row : rows) {
    nll -= SlowLogprob(weights_, row.members[0]);
    tokens += std::count(row.members[0].mask.begin(), row.members[0].mask.end(), 1);
  }

  const HeldOutSums sums = Evaluate(*trainer, rows);
  EXPECT_EQ(sums.rows, 9);
  EXPECT_EQ(sums.tokens, tokens);
  EXPECT_NEAR(sums.MeanLoss(), nll / static_cast<double>(tokens), 1e-6);
  EXPECT_EQ(sums.pairs.pairs, 0);
}

TEST_F(HeldOutTest, TheLossOfPairsIsThatOfTheStepThatWouldTrainThem) {
  const std::vector<Group> rows = Pairs(8, 7);
  const auto trainer = Make(DpoSettings());
  int64_t correct = 0;
  double margin = 0;
  for (const Group& row : rows) {
    const auto gain = [&](int answer) {
      return SlowLogprob(weights_, row.members[answer]) -
             SlowLogprob(reference_, row.members[answer]);
    };
    correct += gain(0) > gain(1);
    margin += kBeta * (gain(0) - gain(1)) / 7;
  }

  const HeldOutSums sums = Evaluate(*trainer, rows);
  EXPECT_EQ(sums.pairs.pairs, 7);
  EXPECT_EQ(sums.pairs.correct, correct);
  EXPECT_NEAR((sums.pairs.reward_chosen - sums.pairs.reward_rejected) / 7, margin, 1e-5);
  EXPECT_NEAR(sums.MeanLoss(), Run(*trainer, 0, rows).loss, 1e-6);
}

// The sums are in fp64, and a row's log-probs do not depend on what stands beside it, so an
// evaluation that is made again after a restart has the same bits whatever the machine.
TEST_F(HeldOutTest, NeitherMicroBatchesNorRanksNorPartsChangeABit) {
  for (Settings settings : {SftSettings(), DpoSettings()}) {
    const int answers = settings.kind == Settings::Kind::kSft ? 1 : 2;
    const std::vector<Group> rows = Pairs(9, 11, answers);
    const HeldOutSums want = Evaluate(*Make(settings), rows);

    settings.micro_batch_tokens = 9;
    const auto divided = Make(settings);
    EXPECT_EQ(Evaluate(*divided, rows).loss, want.loss);

    HeldOutSums parts = Evaluate(*divided, {rows.begin(), rows.begin() + 4});
    parts.Merge(Evaluate(*divided, {rows.begin() + 4, rows.end()}));
    EXPECT_EQ(parts.tokens, want.tokens);
    EXPECT_NEAR(parts.loss, want.loss, 1e-12 * want.loss);

    for (const Shard shard :
         {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kParameters}) {
      SCOPED_TRACE(static_cast<int>(shard));
      settings.shard = shard;
      RankGroup group(3, model_.config, settings);
      ASSERT_TRUE(group->Load(weights_).ok());
      if (settings.reference) {
        ASSERT_TRUE(group->SetReference(reference_).ok());
      }
      EXPECT_EQ(Evaluate(*group, rows).loss, want.loss);
      group.Stop();
      for (const int rank : {1, 2}) EXPECT_EQ(ReasonOf(group.end(rank)), "RANK_LOST");
    }
  }
}

TEST_F(HeldOutTest, AnEvaluationLeavesTheRunAsItIs) {
  const auto evaluated = Make(SftSettings()), plain = Make(SftSettings());
  for (int64_t k = 0; k < 3; ++k) {
    Evaluate(*evaluated, Pairs(50, 4, 1));
    const std::vector<Group> batch = Pairs(static_cast<uint64_t>(k), 6, 1);
    EXPECT_EQ(Run(*evaluated, k, batch).loss, Run(*plain, k, batch).loss);
  }
  EXPECT_TRUE(SameBits(*evaluated->Weights(), *plain->Weights()));
}

TEST_F(HeldOutTest, RowsWithoutATokenToScoreAreCountedAndLeftOut) {
  const auto trainer = Make(DpoSettings());
  const std::vector<Group> rows = Pairs(10, 5);
  const HeldOutSums want = Evaluate(*trainer, rows);
  std::vector<Group> more = rows;
  more.insert(more.begin() + 1, Pairs(11, 1)[0]);
  for (Trajectory& answer : more[1].members) answer.mask.assign(answer.mask.size(), 0);
  more.emplace_back().members.resize(1);  // A row that could not be read.

  const HeldOutSums sums = Evaluate(*trainer, more);
  EXPECT_EQ(sums.rows, 5);
  EXPECT_EQ(sums.left_out, 2);
  EXPECT_EQ(sums.loss, want.loss);
  EXPECT_EQ(Evaluate(*trainer, {}).MeanLoss(), 0);
}

TEST_F(HeldOutTest, RowsOfAnotherFormAndRowsBesideAnOpenBatchAreRefused) {
  const auto trainer = Make(DpoSettings());
  EXPECT_EQ(trainer->Evaluate(Pairs(1, 2, /*answers=*/1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(trainer->Add(0, Pairs(2)).ok());
  EXPECT_EQ(trainer->Evaluate(Pairs(1)).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice::trainer
