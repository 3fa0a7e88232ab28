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
  ExpectOracleForEveryRow(PresetRows(), {"sync_grpo", "sync_dapo", "async_decoupled", "async_vcpo",
                                         "async_cispo", "moe_gspo", "opd", "ppo_critic"});
  for (const Row<AlgorithmSpec>& preset : PresetRows()) {
    const AlgorithmContext context{.has_reference = preset.value.advantage.kl > 0,
                                   .has_teacher = preset.name == "opd"};
    EXPECT_THAT(ValidateAlgorithm(preset.value, context), IsEmpty()) << preset.name;
    EXPECT_TRUE(ResolveLoss(preset.value.loss, 4).ok());
    EXPECT_TRUE(ResolveAdvantage(preset.value.advantage).ok());
  }
}

TEST(ValidateTest, WhatNeedsATeacherIsRefusedWithoutOne) {
  ExpectOne(With([](auto& s) { s.advantage.kind = "none"; }), {}, "advantage.kind",
            "Set model.teacher");
  ExpectOne(With([](auto& s) { s.distill.kind = "full"; }), {}, "distill.kind",
            "only with model.teacher");
  ExpectOne(With([](auto& s) { s.distill.coef = 0.5; }), {}, "distill.coef", "model.teacher");
  ExpectOne(With([](auto& s) { s.distill.top_k = 8; }), {}, "distill.top_k", "model.teacher");
  ExpectOne(With([](auto& s) { s.distill.trust_region = 0.2; }), {}, "distill.trust_region",
            "model.teacher");
}

TEST(ValidateTest, DistillationIsRefusedWhereItCannotDoWhatItSays) {
  const AlgorithmContext teacher{.has_teacher = true};
  EXPECT_THAT(ValidateAlgorithm({}, teacher), IsEmpty());
  EXPECT_THAT(
      ValidateAlgorithm(With([](auto& s) { s.distill = {.kind = "full", .top_k = 8}; }), teacher),
      IsEmpty());
  ExpectOne(With([](auto& s) { s.distill.kind = "half"; }), teacher, "distill.kind",
            "sampled, full");
  ExpectOne(With([](auto& s) { s.distill.coef = 0; }), teacher, "distill.coef", "above 0");
  ExpectOne(With([](auto& s) { s.distill.trust_region = 0; }), teacher, "distill.trust_region",
            "above 0");
  ExpectOne(With([](auto& s) { s.distill.top_k = 8; }), teacher, "distill.top_k",
            "only with distill.kind: full");
  ExpectOne(With([](auto& s) { s.distill = {.kind = "full", .top_k = 1}; }), teacher,
            "distill.top_k", "at least 2");

  // They look at the advantages before the teacher's part is in them.
  ExpectOne(With([](auto& s) { s.loss.m2po = 0.04; }), teacher, "loss.m2po", "distill.kind: full");
  ExpectOne(With([](auto& s) { s.loss.kind = "aepo"; }), teacher, "loss.kind",
            "distill.kind: full");
  ExpectOne(With([](auto& s) { s.advantage.kind = "min_variance", s.loss.kind = "reinforce"; }),
            teacher, "advantage.kind", "distill.kind: full");
  EXPECT_THAT(ValidateAlgorithm(With([](auto& s) { s.loss.m2po = 0.04, s.distill.kind = "full"; }),
                                teacher),
              IsEmpty());

  // Nothing reads the rewards.
  const AlgorithmContext both{.has_reference = true, .has_teacher = true};
  ExpectOne(With([](auto& s) { s.advantage = {.kind = "none", .signal_filter = true}; }), teacher,
            "advantage.group_filter", "learns nothing from them");
  ExpectOne(With([](auto& s) { s.advantage = {.kind = "none", .truncated = "penalty"}; }), teacher,
            "advantage.truncated", "learns nothing from them");
  ExpectOne(With([](auto& s) { s.advantage = {.kind = "none", .kl = 0.1}; }), both, "advantage.kl",
            "learns nothing from them");
}

TEST(ValidateTest, TheDefaultsAreThePresetAsyncDecoupled) {
  EXPECT_EQ(FindRow(PresetRows(), "async_decoupled")->value, AlgorithmSpec());
}

TEST(ValidateTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  ExpectOne(With([](auto& s) { s.loss.kind = "pppo"; }), {}, "loss.kind",
            "unknown name \"pppo\"; use one of reinforce, ppo, dapo");
  ExpectOne(With([](auto& s) { s.loss.prox = "nearest"; }), {}, "loss.prox",
            "none, self, recompute, loglinear, ewma, exact");
  ExpectOne(With([](auto& s) { s.loss.tis_outside = "cut"; }), {}, "loss.tis_outside",
            "clip, drop");
  ExpectOne(With([](auto& s) { s.loss.ess_lr = "half"; }), {}, "loss.ess_lr", "none, sqrt, linear");
  ExpectOne(With([](auto& s) { s.loss.aggregation = "mean"; }), {}, "loss.aggregation",
            "token_mean");
  ExpectOne(With([](auto& s) { s.loss.tis_level = "word"; }), {}, "loss.tis_level",
            "token, sequence");
  ExpectOne(With([](auto& s) { s.loss.kl_kind = "k9"; }), {}, "loss.kl_kind", "k3_is");
  ExpectOne(With([](auto& s) { s.advantage.kind = "gea"; }), {}, "advantage.kind",
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

TEST(ValidateTest, ProxExactNeedsWeightsToDivide) {
  const AlgorithmSpec exact = With([](auto& s) { s.loss.prox = "exact", s.loss.stale_cap = 3; });
  EXPECT_THAT(ValidateAlgorithm(exact, {.minibatches = 4}), IsEmpty());
  ExpectOne(With([](auto& s) { s.loss.prox = "exact", s.loss.tis.reset(); }), {}, "loss.prox",
            "Set loss.tis");
  ExpectOne(With([](auto& s) { s.loss.stale_cap = 3; }), {}, "loss.stale_cap",
            "only with loss.prox: exact");
  ExpectOne(With([](auto& s) { s.loss.prox = "exact", s.loss.stale_cap = 0.5; }), {},
            "loss.stale_cap", "1 or more");
}

TEST(ValidateTest, NumbersOutsideTheirRangeAreRefused) {
  ExpectOne(With([](auto& s) { s.loss.dual = 1; }), {}, "loss.dual", "above 1");
  ExpectOne(With([](auto& s) { s.loss.tis = 0; }), {}, "loss.tis", "above 0");
  ExpectOne(With([](auto& s) { s.loss.veto = 1; }), {}, "loss.veto", "(0, 1)");
  ExpectOne(With([](auto& s) { s.loss.clip_low = 1.5; }), {}, "loss.clip_low", "[0, 1]");
  ExpectOne(With([](auto& s) { s.loss.clip_high = -1; }), {}, "loss.clip_high", "0 or more");
  ExpectOne(With([](auto& s) { s.loss.entropy = -1; }), {}, "loss.entropy", "0 or more");
}

TEST(ValidateTest, NumbersOfGaeAndOfTheKlOutsideTheirRangeAreRefused) {
  const auto gae = [](void (*edit)(AdvantageSpec&)) {
    AlgorithmSpec spec;
    spec.advantage.kind = "gae";
    edit(spec.advantage);
    return spec;
  };
  EXPECT_THAT(ValidateAlgorithm(gae([](auto& a) { a.lam = 0, a.gamma = 0.9; }), {.group_size = 1}),
              IsEmpty());
  ExpectOne(gae([](auto& a) { a.lam = 1.1; }), {}, "advantage.lam", "[0, 1]");
  ExpectOne(gae([](auto& a) { a.lam_value = -0.1; }), {}, "advantage.lam_value", "[0, 1]");
  ExpectOne(gae([](auto& a) { a.lam_alpha = 0; }), {}, "advantage.lam_alpha", "above 0");
  const AlgorithmContext with_reference{.has_reference = true};
  ExpectOne(gae([](auto& a) { a.kl = 0.1, a.kl_target = 0; }), with_reference,
            "advantage.kl_target", "above 0");
  ExpectOne(gae([](auto& a) { a.kl = 0.1, a.kl_target = 0.1, a.kl_horizon = 0; }), with_reference,
            "advantage.kl_horizon", "1 or more");
}

TEST(ValidateTest, BoundsThatBoundNothingAreRefused) {
  ExpectOne(With([](auto& s) { s.loss.tis_low = 2; }), {}, "loss.tis_low", "below loss.tis");
  ExpectOne(With([](auto& s) { s.loss.veto_high = 1; }), {}, "loss.veto_high", "above 1");
  ExpectOne(With([](auto& s) { s.loss.geo_low = 1.01; }), {}, "loss.geo_low", "(0, 1]");
  ExpectOne(With([](auto& s) { s.loss.geo_high = 0.99; }), {}, "loss.geo_high", "1 or more");
  ExpectOne(With([](auto& s) { s.loss.k3_max = 0; }), {}, "loss.k3_max", "above 0");
  ExpectOne(With([](auto& s) { s.loss.opsm = -1; }), {}, "loss.opsm", "0 or more");
  ExpectOne(With([](auto& s) { s.loss.m2po = 0; }), {}, "loss.m2po", "above 0");
  ExpectOne(With([](auto& s) { s.loss.kind = "cispo", s.loss.cispo_low = 5; }), {},
            "loss.cispo_high", "above loss.cispo_low");
  ExpectOne(With([](auto& s) { s.loss.kind = "sapo", s.loss.sapo_negative = 0; }), {},
            "loss.sapo_negative", "above 0");
  ExpectOne(With([](auto& s) { s.loss.prox = "ewma", s.loss.ewma = 1; }), {}, "loss.ewma",
            "(0, 1)");
  ExpectOne(With([](auto& s) { s.loss.ess_lr = "sqrt", s.loss.ess_base = 0; }), {}, "loss.ess_base",
            "(0, 1]");
  ExpectOne(With([](auto& s) { s.advantage.kind = "reinforce_pp", s.advantage.gamma = 0; }), {},
            "advantage.gamma", "(0, 1]");
}

TEST(ValidateTest, AValueThatNothingReadsIsRefused) {
  ExpectOne(With([](auto& s) { s.loss.cispo_high = 4; }), {}, "loss.cispo_high",
            "only with loss.kind: cispo");
  ExpectOne(With([](auto& s) { s.loss.dppo_delta = 0.1; }), {}, "loss.dppo_delta", "dppo_tv");
  ExpectOne(With([](auto& s) { s.loss.aepo_entropy = 0.1; }), {}, "loss.aepo_entropy", "aepo");
  ExpectOne(With([](auto& s) { s.loss.ewma = 0.5; }), {}, "loss.ewma", "prox: ewma");
  ExpectOne(With([](auto& s) { s.loss.tis.reset(), s.loss.tis_normalize = true; }), {},
            "loss.tis_normalize", "loss.tis");
  ExpectOne(With([](auto& s) { s.loss.ess_base = 0.5; }), {}, "loss.ess_base", "loss.ess_lr");
  ExpectOne(With([](auto& s) { s.advantage.gamma = 0.9; }), {}, "advantage.gamma",
            "gae or reinforce_pp");
  ExpectOne(With([](auto& s) { s.advantage.lam = 0.9; }), {}, "advantage.lam", "kind: gae");
  ExpectOne(With([](auto& s) { s.advantage.lam_value = 1; }), {}, "advantage.lam_value",
            "kind: gae");
  ExpectOne(With([](auto& s) { s.advantage.lam_alpha = 1; }), {}, "advantage.lam_alpha",
            "kind: gae");
  ExpectOne(With([](auto& s) { s.advantage.raw = true; }), {}, "advantage.raw", "kind: gae");
  ExpectOne(With([](auto& s) { s.advantage.bootstrap_truncated = true; }), {},
            "advantage.bootstrap_truncated", "kind: gae");
  ExpectOne(With([](auto& s) { s.advantage.kl_target = 0.1; }), {}, "advantage.kl_target",
            "advantage.kl above 0");
  ExpectOne(With([](auto& s) { s.advantage.kl_horizon = 100; }), {}, "advantage.kl_horizon",
            "advantage.kl_target");
  ExpectOne(With([](auto& s) {
              s.advantage = {.kind = "gae", .lam = 0.9, .lam_value = 1.0, .lam_alpha = 0.05};
            }),
            {}, "advantage.lam", "lam_value: none or lam_alpha: none");
  ExpectOne(With([](auto& s) {
              s.advantage = {.kind = "gae", .truncated = "filter", .bootstrap_truncated = true};
            }),
            {}, "advantage.bootstrap_truncated", "keep or penalty");
}

TEST(ValidateTest, LossesThatExcludeOtherChoicesSaySo) {
  ExpectOne(With([](auto& s) { s.loss.kind = "gspo"; }), {}, "loss.aggregation",
            "one ratio per sequence");
  ExpectOne(With([](auto& s) { s.loss.kind = "dppo_tv"; }), {}, "loss.prox", "Set prox: none");
  ExpectOne(With([](auto& s) { s.advantage.kind = "min_variance"; }), {}, "loss.kind",
            "Set loss.kind: reinforce");
  ExpectOne(With([](auto& s) {
              s.advantage.kind = "min_variance", s.loss.kind = "reinforce", s.loss.m2po = 0.04;
            }),
            {}, "loss.m2po", "Set it to none");
  ExpectOne(With([](auto& s) { s.advantage.kind = "maxrl", s.advantage.truncated = "penalty"; }),
            {}, "advantage.kind", "negative");
  ExpectOne(With([](auto& s) { s.advantage.kl = 0.1; }), {}, "advantage.kl", "model.reference");
  for (const Row<LossEntry>& row : LossRows()) {
    AlgorithmSpec spec;
    spec.loss.kind = std::string(row.name);
    if (row.value.defaults != nullptr) row.value.defaults(spec.loss);
    EXPECT_THAT(ValidateAlgorithm(spec, {}), IsEmpty()) << row.name;
  }
}

TEST(ValidateTest, TheTimesOfTurnsNeedAdvantagesThatAreKnownBeforeTheGradients) {
  for (const auto& row : AdvantageRows()) {
    AlgorithmSpec spec;
    spec.advantage.kind = std::string(row.name);
    spec.advantage.duration_aware = true;
    if (row.value.min_variance) spec.loss.kind = "reinforce";
    const AlgorithmContext context{.has_teacher = IgnoresRewards(row.value)};
    if (row.value.min_variance) {
      ExpectOne(spec, context, "advantage.duration_aware", "of whole answers");
    } else if (IgnoresRewards(row.value)) {
      ExpectOne(spec, context, "advantage.duration_aware", "which no factor changes");
    } else {
      EXPECT_THAT(ValidateAlgorithm(spec, context), IsEmpty()) << row.name;
      ExpectOne(spec, {.has_teacher = true}, "advantage.duration_aware", "Set distill.kind: full");
    }
  }
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
  for (const char* kind : {"reinforce", "batch", "reinforce_pp", "gae"}) {
    AlgorithmSpec spec;
    spec.advantage.kind = kind;
    EXPECT_THAT(ValidateAlgorithm(spec, {.group_size = 1}), IsEmpty()) << kind;
  }
}

TEST(ValidateTest, AllProblemsComeAtOnce) {
  AlgorithmSpec spec;
  spec.loss = {.kind = "x", .prox = "y", .dual = 0, .aggregation = "z"};
  EXPECT_EQ(ValidateAlgorithm(spec, {.group_size = 1}).size(), 5u);
}

}  // namespace
}  // namespace sluice
