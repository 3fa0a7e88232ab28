#include "common/algorithms/validate.h"

#include "common/algorithms/presets.h"
#include "tests/common/algorithms/oracle.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

AlgorithmSpec With(void (*edit)(AlgorithmSpec&)) {
  AlgorithmSpec spec;
  edit(spec);
  return spec;
}

void ExpectOne(const AlgorithmSpec& spec, const AlgorithmContext& context, const std::string& field,
               const std::string& text) {
  EXPECT_THAT(ValidateAlgorithm(spec, context),
              ElementsAre(testing::AllOf(Field(&AlgorithmProblem::field, field),
                                         Field(&AlgorithmProblem::message, HasSubstr(text)))));
}

TEST(ValidateTest, EveryPresetIsAccepted) {
  ExpectOracleForEveryRow(PresetRows(), {"sync_grpo", "sync_dapo", "async_decoupled"});
  for (const Row<AlgorithmSpec>& preset : PresetRows()) {
    EXPECT_THAT(ValidateAlgorithm(preset.value, {}), IsEmpty()) << preset.name;
    EXPECT_TRUE(ResolveLoss(preset.value.loss, 4).ok());
    EXPECT_TRUE(ResolveAdvantage(preset.value.advantage).ok());
  }
}

TEST(ValidateTest, TheDefaultsAreThePresetAsyncDecoupled) {
  EXPECT_EQ(FindRow(PresetRows(), "async_decoupled")->value, AlgorithmSpec());
}

TEST(ValidateTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  ExpectOne(With([](auto& s) { s.loss.kind = "pppo"; }), {}, "loss.kind",
            "unknown name \"pppo\"; use one of reinforce, ppo, dapo");
  ExpectOne(With([](auto& s) { s.loss.prox = "loglinear"; }), {}, "loss.prox",
            "none, self, recompute");
  ExpectOne(With([](auto& s) { s.loss.aggregation = "mean"; }), {}, "loss.aggregation",
            "token_mean");
  ExpectOne(With([](auto& s) { s.loss.tis_level = "word"; }), {}, "loss.tis_level",
            "token, sequence");
  ExpectOne(With([](auto& s) { s.loss.kl_kind = "k9"; }), {}, "loss.kl_kind", "k3_is");
  ExpectOne(With([](auto& s) { s.advantage.kind = "gae"; }), {}, "advantage.kind",
            "grpo, dr_grpo, rloo");
  ExpectOne(With([](auto& s) { s.advantage.truncated = "cut"; }), {}, "advantage.truncated",
            "keep, filter, penalty");

  EXPECT_EQ(ResolveLoss({.kind = "pppo"}, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ValidateTest, AWeightOnTopOfARatioToTheBehaviourPolicyIsRefused) {
  ExpectOne(With([](auto& s) { s.loss.prox = "none"; }), {}, "loss.tis", "count it twice");
  EXPECT_THAT(
      ValidateAlgorithm(With([](auto& s) { s.loss.prox = "none", s.loss.tis.reset(); }), {}),
      IsEmpty());
  EXPECT_THAT(
      ValidateAlgorithm(With([](auto& s) { s.loss.prox = "none", s.loss.kind = "reinforce"; }), {}),
      IsEmpty());
}

TEST(ValidateTest, ProxSelfNeedsOneUpdatePerBatch) {
  const AlgorithmSpec self = With([](auto& s) { s.loss.prox = "self"; });
  EXPECT_THAT(ValidateAlgorithm(self, {.minibatches = 1}), IsEmpty());
  ExpectOne(self, {.minibatches = 4}, "loss.prox", "minibatches is 4");
}

TEST(ValidateTest, NumbersOutsideTheirRangeAreRefused) {
  ExpectOne(With([](auto& s) { s.loss.dual = 1; }), {}, "loss.dual", "above 1");
  ExpectOne(With([](auto& s) { s.loss.tis = 0; }), {}, "loss.tis", "above 0");
  ExpectOne(With([](auto& s) { s.loss.veto = 1; }), {}, "loss.veto", "(0, 1)");
  ExpectOne(With([](auto& s) { s.loss.clip_low = 1.5; }), {}, "loss.clip_low", "[0, 1]");
  ExpectOne(With([](auto& s) { s.loss.clip_high = -1; }), {}, "loss.clip_high", "0 or more");
  ExpectOne(With([](auto& s) { s.loss.entropy = -1; }), {}, "loss.entropy", "0 or more");
}

TEST(ValidateTest, KlNeedsAReferenceAndAGradient) {
  ExpectOne(With([](auto& s) { s.loss.kl = 0.1; }), {}, "loss.kl", "model.reference");
  EXPECT_THAT(ValidateAlgorithm(With([](auto& s) { s.loss.kl = 0.1; }), {.has_reference = true}),
              IsEmpty());
  ExpectOne(With([](auto& s) { s.loss.kl_kind = "k1"; }), {}, "loss.kl_kind",
            "expected gradient of 0");
}

TEST(ValidateTest, KlKindFollowsTheStaleness) {
  EXPECT_EQ(ResolveLoss({.kl = 0.1}, 0)->kl, &KlK2Plus);
  EXPECT_EQ(ResolveLoss({.kl = 0.1}, 1)->kl, &KlK3Is);
  EXPECT_EQ(ResolveLoss({.kl = 0.1, .kl_kind = "k3"}, 1)->kl, &KlK3);
  EXPECT_EQ(ResolveLoss({}, 1)->kl, nullptr);
}

TEST(ValidateTest, AGroupOfOneIsRefused) {
  ExpectOne({}, {.group_size = 1}, "advantage.kind", "rollout.group.size is 1");
}

TEST(ValidateTest, AllProblemsComeAtOnce) {
  AlgorithmSpec spec;
  spec.loss = {.kind = "x", .prox = "y", .dual = 0, .aggregation = "z"};
  EXPECT_EQ(ValidateAlgorithm(spec, {.group_size = 1}).size(), 5u);
}

}  // namespace
}  // namespace sluice
