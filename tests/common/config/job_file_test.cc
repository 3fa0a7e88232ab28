#include "common/config/job_file.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/algorithms/presets.h"
#include "common/algorithms/registry.h"
#include "common/algorithms/validate.h"
#include "common/base/file.h"
#include "common/config/algorithm_spec.h"
#include "common/config/bind.h"
#include "common/config/check.h"
#include "common/config/fields.h"
#include "common/scoring/job_scorer.h"
#include "common/testing/data.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The smallest valid job file. The numbers are those of its lines, which the expected errors name.
constexpr char kMinimal[] =
    "name: demo\n"                                       // 1
    "model: {path: m}\n"                                 // 2
    "data:\n"                                            // 3
    "  train: [{name: a, path: rows.jsonl}]\n"           // 4
    "reward: {rewards: [{name: r, verifier: exact}]}\n"  // 5
    "checkpoint: {dir: out}\n"                           // 6
    "trainer:\n"                                         // 7
    "  optimizer: {lr: 1e-3, betas: [0.9, 0.95]}\n"      // 8
    "rollout: {max_response: 512}\n";                    // 9

JobFile Parse(absl::string_view text, std::vector<std::string> sets = {}) {
  return ParseJobFile(text, "/jobs/job.yaml", {.sets = std::move(sets), .check_paths = false});
}

std::vector<std::string> ProblemLines(const JobFile& file) {
  std::vector<std::string> lines;
  for (const ConfigProblem& problem : file.problems)
    lines.push_back(absl::StrReplaceAll(problem.ToString(), {{"/jobs/", ""}}));
  return lines;
}

// A preset, and what the job needs to have it: a reference for a KL in the reward, or a teacher.
std::vector<std::string> WithPreset(const Row<AlgorithmSpec>& preset) {
  std::vector<std::string> sets = {absl::StrCat("algorithm.preset=", preset.name)};
  if (preset.value.advantage.kl > 0) sets.push_back("model.reference=initial");
  if (preset.value.advantage.kind == "none") sets.push_back("model.teacher.path=t");
  return sets;
}

// Returns the problems of kMinimal after `from` is replaced by `to`.
std::vector<std::string> Wrong(absl::string_view from, absl::string_view to) {
  const std::string text = absl::StrReplaceAll(kMinimal, {{from, to}});
  EXPECT_NE(text, kMinimal);
  return ProblemLines(Parse(text));
}

TEST(JobFile, AMinimalFileIsCompletedWithDefaultsAndAbsolutePaths) {
  const JobFile file = Parse(kMinimal);
  ASSERT_THAT(ProblemLines(file), ElementsAre());

  EXPECT_EQ(file.spec->model().path(), "/jobs/m");
  EXPECT_EQ(file.spec->data().train(0).path(), "/jobs/rows.jsonl");
  EXPECT_EQ(file.spec->checkpoint().dir(), "/jobs/out");
  EXPECT_EQ(file.spec->trainer().optimizer().lr(), 1e-3);
  EXPECT_EQ(file.spec->queue().groups_per_step(), 64u);
  EXPECT_EQ(file.spec->queue().keep().quota(), 8ull << 30);
  EXPECT_FALSE(file.spec->limits().has_wall());
  EXPECT_FALSE(file.spec->model().has_init());
  EXPECT_EQ(file.hash.size(), 32u);
}

TEST(JobFile, EachValueTellsItsOrigin) {
  const JobFile file = Parse(kMinimal, {"limits.max_steps=3"});
  EXPECT_EQ(file.origins.at("trainer.optimizer.lr"), "file:8");
  EXPECT_EQ(file.origins.at("limits.max_steps"), "set");
  EXPECT_EQ(file.origins.at("algorithm.loss.dual"), "preset");
  EXPECT_EQ(file.origins.at("queue.max_staleness"), "default");
}

TEST(JobFile, SetGoesOverFileOverPresetOverDefault) {
  const std::string text =
      absl::StrCat(kMinimal, "algorithm: {preset: sync_grpo, loss: {clip_high: 0.3, tis: none}}\n");
  const JobFile file = Parse(text, {"algorithm.loss.clip_high=0.4"});
  ASSERT_THAT(ProblemLines(file), ElementsAre());

  EXPECT_EQ(file.spec->algorithm().advantage().kind(), "grpo");  // From the preset.
  EXPECT_EQ(file.spec->algorithm().loss().clip_low(), 0.2);
  EXPECT_FALSE(file.spec->algorithm().loss().has_tis());      // From the file.
  EXPECT_EQ(file.spec->algorithm().loss().clip_high(), 0.4);  // From the command line.
}

TEST(JobFile, PresetsGiveWhatTheAlgorithmLibrarySays) {
  for (const Row<AlgorithmSpec>& preset : PresetRows()) {
    const JobFile file = Parse(kMinimal, WithPreset(preset));
    ASSERT_THAT(ProblemLines(file), ElementsAre()) << preset.name;
    EXPECT_TRUE(AlgorithmSpecOf(*file.spec) == preset.value) << preset.name;
  }
}

TEST(JobFile, APresetsSelfAnchorGivesWayToSeveralUpdatesABatch) {
  const JobFile file =
      Parse(kMinimal, {"algorithm.preset=sync_grpo", "trainer.batching.minibatches=2"});
  ASSERT_THAT(ProblemLines(file), ElementsAre());
  EXPECT_EQ(file.spec->algorithm().loss().prox(), "recompute");
}

TEST(JobFile, ALossThatTheFileNamesBringsItsOwnValuesButNotOverThoseOfTheFile) {
  const JobFile gspo = Parse(kMinimal, {"algorithm.loss.kind=gspo"});
  ASSERT_THAT(ProblemLines(gspo), ElementsAre());
  EXPECT_EQ(gspo.spec->algorithm().loss().clip_low(), 3e-4);
  EXPECT_EQ(gspo.spec->algorithm().loss().clip_high(), 4e-4);
  EXPECT_EQ(gspo.spec->algorithm().loss().aggregation(), "seq_mean_token_mean");
  EXPECT_FALSE(gspo.spec->algorithm().loss().has_dual());

  const JobFile given = Parse(kMinimal, {"algorithm.loss={kind: gspo, clip_high: 0.1}"});
  ASSERT_THAT(ProblemLines(given), ElementsAre());
  EXPECT_EQ(given.spec->algorithm().loss().clip_low(), 3e-4);
  EXPECT_EQ(given.spec->algorithm().loss().clip_high(), 0.1);

  const JobFile dppo = Parse(kMinimal, {"algorithm.loss.kind=dppo_tv"});
  ASSERT_THAT(ProblemLines(dppo), ElementsAre());
  EXPECT_EQ(dppo.spec->algorithm().loss().prox(), "none");
}

TEST(JobFile, EveryLossThatAFileNamesUnderEveryPresetHasItsOwnBounds) {
  for (const Row<AlgorithmSpec>& preset : PresetRows()) {
    for (const Row<LossEntry>& loss : LossRows()) {
      std::vector<std::string> sets = WithPreset(preset);
      sets.push_back(absl::StrCat("algorithm.loss.kind=", loss.name));
      const JobFile file = Parse(kMinimal, sets);
      if (preset.value.loss.kind == loss.name) {
        EXPECT_TRUE(AlgorithmSpecOf(*file.spec) == preset.value) << preset.name;
        continue;
      }
      LossSpec wanted;
      if (loss.value.defaults != nullptr) loss.value.defaults(wanted);
      const LossSpec got = AlgorithmSpecOf(*file.spec).loss;
      EXPECT_EQ(got.clip_low, wanted.clip_low) << preset.name << " " << loss.name;
      EXPECT_EQ(got.clip_high, wanted.clip_high) << preset.name << " " << loss.name;
      EXPECT_EQ(got.dual, wanted.dual) << preset.name << " " << loss.name;
      EXPECT_EQ(got.aggregation, wanted.aggregation) << preset.name << " " << loss.name;
      EXPECT_EQ(got.tis_outside, wanted.tis_outside) << preset.name << " " << loss.name;
    }
  }
}

// A controller keeps the jobs of the build before it. Their specs lack the fields that came later.
TEST(JobFile, AStoredJobWithoutLaterFieldsHasTheirDefaults) {
  job::v1::JobSpec spec = *Parse(kMinimal).spec;
  const AlgorithmSpec before = AlgorithmSpecOf(spec);
  job::v1::Loss& loss = *spec.mutable_algorithm()->mutable_loss();
  for (int i = 0; i < job::v1::Loss::descriptor()->field_count(); ++i) {
    const auto* field = job::v1::Loss::descriptor()->field(i);
    if (field->number() >= 13) loss.GetReflection()->ClearField(&loss, field);
  }
  spec.mutable_algorithm()->mutable_advantage()->clear_gamma();
  spec.mutable_algorithm()->mutable_advantage()->clear_kl();
  EXPECT_TRUE(AlgorithmSpecOf(spec) == before);
  EXPECT_THAT(ValidateAlgorithm(AlgorithmSpecOf(spec), {}), testing::IsEmpty());
}

TEST(JobFile, AKeyThatTheLossDoesNotReadIsWarnedOf) {
  const JobFile file =
      Parse(kMinimal, {"algorithm.loss={kind: sapo, clip_high: 0.3, kl_kind: k2, dual: 2}"});
  ASSERT_THAT(ProblemLines(file), ElementsAre());
  std::string warnings;
  for (const ConfigProblem& warning : file.warnings) warnings += warning.ToString() + "\n";
  EXPECT_THAT(warnings, HasSubstr("algorithm.loss.clip_high has no effect with loss.kind sapo"));
  EXPECT_THAT(warnings, HasSubstr("algorithm.loss.dual has no effect"));
  EXPECT_THAT(warnings, HasSubstr("algorithm.loss.kl_kind has no effect"));
  EXPECT_THAT(Parse(kMinimal, {"algorithm.loss.kind=sapo"}).warnings, testing::IsEmpty());
}

TEST(JobFile, SetReachesListsByPlaceAndItsPathsAreTheShells) {
  const JobFile file =
      Parse(kMinimal, {"data.train.0.path=here.jsonl", "data.train.1.name=b",
                       "data.train.1.path=/x/b.jsonl", "data.train.1.fields={a: b}"});
  ASSERT_THAT(ProblemLines(file), ElementsAre());

  EXPECT_EQ(file.spec->data().train(0).path(),
            (std::filesystem::current_path() / "here.jsonl").string());
  EXPECT_EQ(file.spec->data().train(1).name(), "b");
  EXPECT_EQ(file.spec->data().train(1).weight(), 1);  // A new entry has the defaults.
  EXPECT_EQ(file.spec->data().train(1).fields().at("a"), "b");
}

TEST(JobFile, TheMinimumOfAGroupFollowsItsSize) {
  EXPECT_EQ(Parse(kMinimal, {"rollout.group.size=4"}).spec->rollout().group().min(), 4u);
  EXPECT_EQ(Parse(kMinimal, {"rollout.group.first_wave=3"}).spec->rollout().group().min(), 3u);
}

TEST(JobFile, PrintedDefaultsLoadToTheDefaults) {
  const JobFile printed = Parse(JobFileDefaults());
  ASSERT_THAT(ProblemLines(printed), ElementsAre());
  const JobFile sparse = Parse(
      "name: my-job\nmodel: {path: /models/my-model}\ndata: {train: [{name: train, path: "
      "/data/train.jsonl}]}\n"
      "reward: {rewards: [{name: correct, verifier: exact}]}\ncheckpoint: {dir: "
      "/checkpoints/my-job}\n");
  ASSERT_THAT(ProblemLines(sparse), ElementsAre());

  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*printed.spec, *sparse.spec));
}

TEST(JobFile, ThePrintedDefaultsSayWhichKeysOfASubmittedJobCanBeSet) {
  const auto line_of = [](absl::string_view key) {
    for (const absl::string_view line : absl::StrSplit(JobFileDefaults(), '\n')) {
      if (absl::StartsWith(absl::StripAsciiWhitespace(line), key)) return std::string(line);
    }
    return std::string();
  };
  EXPECT_THAT(line_of("stall_warn:"), HasSubstr("; `sluice job set` changes it)"));
  EXPECT_THAT(line_of("max_steps:"), AllOf(HasSubstr("# "), Not(HasSubstr("job set"))));
}

TEST(JobFile, APrintedSpecLoadsToItself) {
  const JobFile file =
      Parse(absl::StrCat(kMinimal, "limits: {wall: 5m}\n"),
            {"model.path=/m", "data.train.0.format=\"{question}\\n\"",
             "reward.rewards.0.verifier=text", "reward.rewards.0.args={property: reversed}",
             "data.train.0.fields={question: q}", "algorithm.loss.dual=none"});
  ASSERT_THAT(ProblemLines(file), ElementsAre());

  const JobFile again = Parse(JobFileText(*file.spec));
  ASSERT_THAT(ProblemLines(again), ElementsAre());

  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*file.spec, *again.spec));
}

TEST(JobFile, APrintedSpecWithoutAModelPathLoadsToItself) {
  const JobFile file = Parse(kMinimal, {"model={init: {config: /configs/tiny}}"});
  ASSERT_THAT(ProblemLines(file), ElementsAre());
  ASSERT_EQ(file.spec->model().path(), "");

  const JobFile again = Parse(JobFileText(*file.spec));
  ASSERT_THAT(ProblemLines(again), ElementsAre());

  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*file.spec, *again.spec));
}

TEST(JobFile, AnUnknownKeyNamesTheNearest) {
  EXPECT_THAT(Wrong("lr: 1e-3", "learnig_rate: 1e-3"),
              ElementsAre("job.yaml:8:15 SLUICE-CONFIG-0003 unknown key \"learnig_rate\" in "
                          "trainer.optimizer. Did you mean \"lr\"?"));
  EXPECT_THAT(Wrong("checkpoint:", "checkpiont:"),
              ElementsAre("job.yaml:1:1 SLUICE-CONFIG-0009 checkpoint.dir is missing: Directory of "
                          "the checkpoints. One is written after every_steps or every, whichever "
                          "comes first, and at SIGTERM and the end.",
                          "job.yaml:6:1 SLUICE-CONFIG-0003 unknown key \"checkpiont\" in the job "
                          "file. Did you mean \"checkpoint\"?"));
  EXPECT_THAT(Wrong("max_response: 512", "max_staleness: 1"),
              ElementsAre("job.yaml:9:11 SLUICE-CONFIG-0003 unknown key \"max_staleness\" in "
                          "rollout. Did you mean \"queue.max_staleness\"?"));
  EXPECT_THAT(Wrong("max_response: 512", "limits: {}"),
              ElementsAre("job.yaml:9:11 SLUICE-CONFIG-0003 unknown key \"limits\" in rollout; it "
                          "belongs at the top level of the file, without indentation"));
}

TEST(JobFile, WrongTypesUnitsBoundsAndWordsAreTold) {
  EXPECT_THAT(
      Wrong("lr: 1e-3", "lr: fast"),
      ElementsAre(
          "job.yaml:8:19 SLUICE-CONFIG-0005 trainer.optimizer.lr wants a number, has \"fast\""));
  EXPECT_THAT(Wrong("lr: 1e-3", "lr: \"1e-3\""),
              ElementsAre("job.yaml:8:19 SLUICE-CONFIG-0005 trainer.optimizer.lr wants a number, "
                          "has \"1e-3\" in quotes"));
  EXPECT_THAT(
      Wrong("lr: 1e-3", "lr: -1"),
      ElementsAre(
          "job.yaml:8:19 SLUICE-CONFIG-0007 trainer.optimizer.lr is -1, but the minimum is 0"));
  EXPECT_THAT(Wrong("lr: 1e-3", "lr: .nan"),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0005 trainer.optimizer.lr wants a number")));

  EXPECT_THAT(Wrong("512}", "512, timeout: 30}"),
              ElementsAre("job.yaml:9:39 SLUICE-CONFIG-0006 rollout.timeout: \"30\" needs a unit: "
                          "ms, s, m, h or d"));
  EXPECT_THAT(
      Wrong("rollout:", "limits: {wall: 0s}\nrollout:"),
      ElementsAre(
          "job.yaml:9:16 SLUICE-CONFIG-0007 limits.wall is 0s, wants more than 0s or none"));
  EXPECT_THAT(
      Wrong("rollout:", "limits: {start: 0ms}\nrollout:"),
      ElementsAre("job.yaml:9:17 SLUICE-CONFIG-0007 limits.start is 0s, wants more than 0s"));
  EXPECT_THAT(Wrong("512}", "5.5}"),
              ElementsAre("job.yaml:9:25 SLUICE-CONFIG-0005 rollout.max_response wants a whole "
                          "number from 0 on, has \"5.5\""));
  EXPECT_THAT(Wrong("rollout:", "queue: {keep: {quota: 8GB}}\nrollout:"),
              ElementsAre("job.yaml:9:23 SLUICE-CONFIG-0006 queue.keep.quota: \"8GB\" has an "
                          "unknown unit; the units are B, KiB, MiB, GiB and TiB"));

  EXPECT_THAT(Wrong("name: demo", "name: demo\nkind: rll"),
              ElementsAre("job.yaml:2:7 SLUICE-CONFIG-0008 kind is \"rll\", wants rl, sft, dpo. "
                          "Did you mean \"rl\"?"));
  EXPECT_THAT(
      Wrong("{path: m}", "m"),
      ElementsAre("job.yaml:2:8 SLUICE-CONFIG-0005 model wants a block of keys, has \"m\""));
  EXPECT_THAT(Wrong("[{name: a, path: rows.jsonl}]", "{name: a}"),
              ElementsAre("job.yaml:4:10 SLUICE-CONFIG-0005 data.train wants a list, has a block"));
}

TEST(JobFile, MissingValuesPointAtTheirBlock) {
  EXPECT_THAT(Wrong("{name: r, verifier: exact}", "{name: r}"),
              ElementsAre("job.yaml:5:20 SLUICE-CONFIG-0009 reward.rewards.0.verifier is missing: "
                          "The verifier that scores it."));
  EXPECT_THAT(Wrong("model: {path: m}\n", ""),
              ElementsAre("job.yaml:1:1 SLUICE-CONFIG-0010 model wants one of path (a Hugging Face "
                          "directory) and init (random weights from a config)"));
}

TEST(JobFile, YamlThatJobFilesMayNotUseIsRefusedWithItsPlace) {
  EXPECT_THAT(Wrong("name: demo", "name: &x demo"),
              ElementsAre(HasSubstr("job.yaml:1:7 SLUICE-CONFIG-0002 anchor \"&x\"")));
  EXPECT_THAT(
      Wrong("name: demo", "name: demo\nname: two"),
      ElementsAre(
          "job.yaml:2:1 SLUICE-CONFIG-0004 duplicate key \"name\"; its first value is in line 1"));
  EXPECT_THAT(Wrong("name: demo", "name: demo\nrun: {deterministic: no}"),
              ElementsAre(HasSubstr("job.yaml:2:22 SLUICE-CONFIG-0002 \"no\"")));
  EXPECT_THAT(Wrong("name: demo", "name: ${USER}"),
              ElementsAre(HasSubstr("job.yaml:1:7 SLUICE-CONFIG-0002")));
  EXPECT_THAT(Wrong("name: demo", "name: !!str demo"),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0002 tag")));
  EXPECT_THAT(Wrong("name: demo", "name: [demo"),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0001 not YAML")));
  EXPECT_THAT(ProblemLines(Parse(absl::StrCat(std::string(40, '['), std::string(40, ']')))),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0002 nested deeper than 32")));
  EXPECT_THAT(ProblemLines(Parse(std::string(kMaxJobFileBytes + 1, '#'))),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0002 is 1048577 bytes")));
  EXPECT_THAT(ProblemLines(Parse(absl::StrCat(kMinimal, "---\nname: two\n"))),
              ElementsAre(HasSubstr("has a second document")));
}

TEST(JobFile, BytesThatAreNotUtf8AreRefusedWithTheirPlace) {
  EXPECT_THAT(Wrong("path: rows.jsonl", "path: r\xc3\xb6ws-\xe9.jsonl"),
              ElementsAre("job.yaml:4:32 SLUICE-CONFIG-0002 byte 0xe9 is not UTF-8; job files and "
                          "the names in them are UTF-8"));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"model.path=m\xff"})),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0002 byte 0xff is not UTF-8")));
  EXPECT_THAT(
      ProblemLines(ParseJobFile(kMinimal, "/job\xff/job.yaml", {.sets = {}, .check_paths = false})),
      ElementsAre(HasSubstr(":2:15 SLUICE-CONFIG-0012 model.path: /job\xef\xbf\xbd/m is not UTF-8; "
                            "rename that directory"),
                  HasSubstr("data.train.0.path"), HasSubstr("checkpoint.dir")));
}

TEST(JobFile, SetsThatNameNothingAreTold) {
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"nonsense"})),
              ElementsAre(HasSubstr("--set nonsense SLUICE-CONFIG-0014 want KEY=VALUE")));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"data.train.7.path=x"})),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0014 \"7\" is not an index of a list of 1")));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"trainer.optimizer.lrr=1"})),
              ElementsAre("--set trainer.optimizer.lrr=1 SLUICE-CONFIG-0003 unknown key \"lrr\" in "
                          "trainer.optimizer. Did you mean \"lr\"?"));
}

TEST(JobFile, ACanaryNeedsAnotherRolloutThatItProtects) {
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"weights.canary={}", "resources.rollout.max=2"})),
              ElementsAre());
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"weights.canary={}", "resources.rollout.max=1"})),
              ElementsAre(HasSubstr("weights.canary needs at least 2 rollouts, but "
                                    "resources.rollout.max is 1")));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"weights.canary={}", "kind=sft"})),
              testing::Contains(HasSubstr("weights.canary is not used by kind: sft")));
}

TEST(JobFile, ValuesThatContradictEachOtherAreRefused) {
  // A --set and what its problem must say. An empty text means that the value is accepted.
  const std::pair<const char*, const char*> cases[] = {
      {"rollout.group.size=1", "algorithm.advantage.kind"},
      {"rollout.group.min=9", "rollout.group.min is 9, but the maximum is rollout.group.size = 8"},
      {"weights.every_steps=6",
       "weights.every_steps is 6, but the maximum is queue.max_staleness + 1 = 5"},
      {"weights.canary={}", ""},
      {"weights.canary={max_gap: 0}", "weights.canary.max_gap is 0"},
      {"weights={canary: {}, retain_versions: 1}",
       "weights.retain_versions is 1, but weights.canary needs at least 2"},
      {"weights.inflight=finish", ""},
      {"weights={inflight: finish, resident_versions: 5}", ""},
      {"weights={inflight: finish, resident_versions: 6}",
       "weights.resident_versions is 6, but the maximum is queue.max_staleness + 1 = 5"},
      {"weights={inflight: finish, kv_cache: recompute}", "weights.kv_cache is recompute"},
      {"weights.resident_versions=2", "unless weights.inflight is finish"},
      {"weights.resident_versions=1", "weights.resident_versions"},
      {"queue.admission.staleness=5",
       "queue.admission.staleness is 5, but the maximum is queue.max_staleness = 4"},
      {"queue.admission.statistic=strict", "mask needs queue.admission.statistic: masked"},
      {"algorithm.loss.dual=1", "above 1"},
      {"algorithm.loss.prox=none", "count it twice"},
      {"algorithm.loss.kl=0.1", "needs a reference model"},
      {"algorithm.loss={prox: self}", ""},
      {"algorithm.loss={prox: exact, stale_cap: 3}", ""},
      {"algorithm.loss={prox: exact, tis: none}", "Set loss.tis, or prox: recompute"},
      {"algorithm.loss.stale_cap=3", "has an effect only with loss.prox: exact"},
      {"algorithm.advantage.kind=none", "Set model.teacher"},
      {"algorithm.distill.top_k=4", "has an effect only with model.teacher"},
      {"model.teacher={path: t}", ""},
      {"model.teacher={}", "model.teacher.path is missing"},
      {"rollout.sampling.temperature=0", "rollout.sampling.temperature is 0"},
      {"rollout.max_response=16384", "must be below model.max_context"},
      {"trainer.optimizer.betas=[0.9]", "two values"},
      {"trainer.optimizer.betas=[0.9, 1.0]", "two values"},
      {"trainer.optimizer.schedule=step", "is \"step\", wants constant, cosine"},
      {"trainer.optimizer.schedule=cosine", ""},  // Allowed, as limits.max_steps has a default.
      {"trainer.batching.minibatches=65", "maximum is queue.groups_per_step"},
      {"resources.rollout.min=9", "wants 1 <= min <= max"},
      {"model.init.config=c", "contradicts model.path"},
      {"name=Demo", "lower-case letters"},
      {"queue.keep.quota=1MiB", "queue.keep.quota 1MiB < worst case"},
      {"data.train=[]", "data.train is missing: The data sources; at least one."},
      {"algorithm.preset=sync_grp", "Did you mean \"sync_grpo\"?"},
      {"reward.rewards.0.verifier=exakt",
       "is \"exakt\", wants code, countdown, exact, format, gsm8k, ifeval, json_schema, judge, "
       "math, "
       "multiple_choice, plugin, regex, text. Did you mean \"exact\"?"},
      {"reward.rewards.0.args={nonsense: 1}", "reward.rewards.0.args: "},
      {"reward.rewards.0.granularity=group", "scores each answer by itself"},
      {"algorithm.loss.kind=pppo",
       "is \"pppo\", wants reinforce, ppo, dapo, gspo, cispo, sapo, aepo, dppo_tv. Did you mean "
       "\"ppo\"?"},
  };

  for (const auto& [set, text] : cases) {
    if (text[0] == '\0') EXPECT_THAT(ProblemLines(Parse(kMinimal, {set})), ElementsAre()) << set;
    else EXPECT_THAT(ProblemLines(Parse(kMinimal, {set})), ElementsAre(HasSubstr(text))) << set;
  }
}

TEST(JobFile, PathsOfPluginsAreRelativeToTheFileAndThoseOfSetsToTheWorkingFolder) {
  const auto args = [](const std::string& text, const std::vector<std::string>& sets) {
    const JobFile file = Parse(text, sets);
    EXPECT_THAT(ProblemLines(file), ElementsAre());
    return VerifierArgs(file.spec->reward().rewards(0))->dump();
  };
  const std::string entry = "{name: r, verifier: plugin, granularity: group, args: ";
  const std::string file = absl::StrReplaceAll(
      kMinimal, {{"{name: r, verifier: exact}", entry + "{trl: ../my/r.py:f, processes: 3}}"}});
  EXPECT_EQ(args(file, {}), R"({"processes":3,"trl":"/my/r.py:f"})");
  EXPECT_EQ(args(kMinimal, {absl::StrCat("reward.rewards=[", entry, "{exec: [node, ./r.js]}}]")}),
            absl::StrCat(R"({"exec":["node",")", std::filesystem::current_path().string(),
                         R"(/r.js"]})"));
}

// Training on rows has no other use for the algorithm.
TEST(JobFile, OfTheAlgorithmRowsMayHaveTheBalanceOfExpertsAlone) {
  constexpr char kRows[] =
      "name: s\nkind: sft\nmodel: {path: /models/m}\ndata: {train: [{name: a, path: /d.jsonl}]}\n"
      "limits: {max_steps: 3}\ncheckpoint: {dir: /ckpt}\nresources: {trainer: 1}\n";
  EXPECT_THAT(ProblemLines(Parse(kRows, {"algorithm.loss.router_balance=0.001"})), ElementsAre());
  EXPECT_THAT(ProblemLines(Parse(kRows, {"algorithm.loss={router_balance: 0.001, kl: 0.1}"})),
              ElementsAre(HasSubstr("except for loss.router_balance; leave its other keys out")));
  EXPECT_THAT(ProblemLines(Parse(kRows, {"algorithm.loss.kl=0.1"})),
              ElementsAre(HasSubstr("algorithm is not used by kind: sft")));
}

// 6 steps x 1 group x 2 members x 1,024 tokens x 20 B are 240 KiB. A token of this model also
// has the ids of 2 experts in 2 layers, which are 8 B more.
TEST(JobFile, TheQuotaHoldsTheExpertsOfAMixtureOfExpertsModelToo) {
  SLUICE_NEEDS_TEST_DATA("models/qwen3moe-tiny");
  const auto problems = [](absl::string_view model, absl::string_view quota) {
    const JobFile file =
        Parse(kMinimal, {absl::StrCat("model.path=", testing_data::Path("models/"), model),
                         absl::StrCat("queue.keep.quota=", quota), "queue.groups_per_step=1",
                         "rollout.group.size=2", "rollout.group.min=2", "data.order.max_prompt=512",
                         "checkpoint.every_steps=1"});
    EXPECT_THAT(ProblemLines(file), ElementsAre());
    std::vector<std::string> texts;
    for (const SpecProblem& error : CheckJobSpec(*file.spec, {.files_must_exist = false}).errors)
      texts.push_back(error.ToString());
    return texts;
  };

  EXPECT_THAT(problems("qwen3-tiny", "240KiB"), ElementsAre());
  EXPECT_THAT(problems("qwen3moe-tiny", "336KiB"), ElementsAre());
  EXPECT_THAT(problems("qwen3moe-tiny", "335KiB"),
              ElementsAre(HasSubstr("SLUICE-CONFIG-0011 queue.keep.quota 335KiB < worst case")));
}

TEST(JobFile, AScheduleThatFallsToZeroWantsALastStep) {
  EXPECT_THAT(
      ProblemLines(Parse(kMinimal, {"trainer.optimizer.schedule=cosine", "limits.max_steps=none"})),
      ElementsAre(HasSubstr("trainer.optimizer.schedule is cosine, whose learning rate falls to 0 "
                            "at limits.max_steps, but limits.max_steps is none")));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"limits.max_steps=none"})), ElementsAre());
}

TEST(JobFile, ADeterministicJobDependsOnNoClock) {
  const std::vector<std::string> fits = {"run.deterministic=true", "queue.max_staleness=0",
                                         "weights.every_steps=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), fits.begin(), fits.end());
    return ProblemLines(Parse(kMinimal, more));
  };

  EXPECT_THAT(with({}), ElementsAre());
  EXPECT_THAT(with({"weights.kv_cache=recompute"}), ElementsAre());
  EXPECT_THAT(with({"queue.max_staleness=1"}),
              ElementsAre(HasSubstr("queue.max_staleness is 1, but run.deterministic needs 0")));
  EXPECT_THAT(
      with({"queue.admission.oversample=0.5"}),
      ElementsAre(HasSubstr("queue.admission.oversample is 0.5, but run.deterministic needs 0")));
  EXPECT_THAT(with({"queue.straggler.policy=drop"}),
              ElementsAre(HasSubstr("drop depends on the clock")));
  EXPECT_THAT(
      with({"weights.kv_cache=keep"}),
      ElementsAre(HasSubstr("weights.kv_cache is keep, but run.deterministic needs recompute")));
}

TEST(JobFile, EvaluationNeedsDatasetsThatSomethingScores) {
  const std::string eval = "eval: {every_steps: 5, datasets: [{name: heldout, path: h}]}\n";
  const std::string plain = absl::StrCat(kMinimal, eval);
  EXPECT_THAT(ProblemLines(Parse(plain)), ElementsAre());

  const auto with = [&](std::vector<std::string> sets) {
    return ProblemLines(Parse(plain, std::move(sets)));
  };

  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"eval.every_steps=5"})),
              ElementsAre(HasSubstr("eval.datasets is empty, but eval.every_steps is 5")));
  EXPECT_THAT(with({"eval.samples=4"}),
              ElementsAre(HasSubstr("at eval.temperature 0 all answers to a row are the same")));
  EXPECT_THAT(with({"eval.samples=4", "eval.temperature=1"}), ElementsAre());
  EXPECT_THAT(with({"eval.datasets.0.weight=2"}),
              ElementsAre(HasSubstr("all datasets of eval have equal weight")));
  EXPECT_THAT(with({"eval.datasets.0.name=a/b"}), ElementsAre(HasSubstr("\"a/b\" has a slash")));
  EXPECT_THAT(with({"reward.rewards.0.when.data_source=[a]"}),
              ElementsAre(HasSubstr(
                  "eval.datasets.0.name \"heldout\" is in no reward's when.data_source")));
  EXPECT_THAT(with({"reward.rewards.0.when.data_source=[a]", "eval.every_steps=0"}), ElementsAre())
      << "it is off";

  const std::string twice = absl::StrCat(
      kMinimal, "eval: {every_steps: 5, datasets: [{name: h, path: h}, {name: h, path: i}]}\n");
  EXPECT_THAT(ProblemLines(Parse(twice)),
              ElementsAre(HasSubstr("eval.datasets.1.name \"h\" is taken; names must differ")));

  const std::string sft =
      "name: s\nkind: sft\nmodel: {path: m}\ndata: {train: [{name: a, path: r}]}\ncheckpoint: "
      "{dir: out}\n";

  EXPECT_THAT(ProblemLines(Parse(sft + eval)), ElementsAre());
  EXPECT_THAT(ProblemLines(Parse(sft + eval, {"eval.samples=4", "eval.temperature=1"})),
              ElementsAre(HasSubstr("eval.samples is not used by kind: sft, whose evaluation is "
                                    "the loss of the rows' own answers"),
                          HasSubstr("eval.temperature is not used by kind: sft")));
  EXPECT_THAT(ProblemLines(Parse(sft + eval, {"eval.share=0.5"})),
              ElementsAre(HasSubstr("eval.share is not used by kind: sft")));
}

TEST(JobFile, AnEvaluationDatasetThatCannotBeReadIsToldBeforeTheJobStarts) {
  const std::string dir = testing::TempDir();
  const auto problems = [&](const std::string& rows) {
    EXPECT_TRUE(WriteFileAtomic(dir + "/eval_rows.jsonl", rows).ok());
    const std::string text = absl::StrCat(
        kMinimal, "eval: {every_steps: 5, datasets: [{name: h, path: eval_rows.jsonl}]}\n");
    std::vector<std::string> found;
    for (const std::string& line : ProblemLines(ParseJobFile(text, dir + "/job.yaml"))) {
      if (absl::StrContains(line, "eval.datasets")) found.push_back(line);
    }
    return found;
  };

  EXPECT_THAT(problems("{\"prompt\": \"1+1\", \"answer\": \"2\"}\n"), ElementsAre());
  EXPECT_THAT(problems(""), ElementsAre(HasSubstr("eval.datasets.0.path: ")));
  EXPECT_THAT(problems("{\"question\": \"1+1\"}\n"), ElementsAre(HasSubstr("prompt")));
  EXPECT_THAT(problems("{\"prompt\": \"1+1\"\n"), ElementsAre(HasSubstr("eval_rows.jsonl")));

  // A supervised job scores the rows' own answers.
  EXPECT_TRUE(WriteFileAtomic(dir + "/eval_rows.jsonl", "{\"prompt\": \"1+1\"}\n").ok());
  const std::string sft =
      "name: s\nkind: sft\nmodel: {path: m}\ndata: {train: [{name: a, path: r}]}\ncheckpoint: "
      "{dir: out}\neval: {every_steps: 5, datasets: [{name: h, path: eval_rows.jsonl}]}\n";
  EXPECT_THAT(ProblemLines(ParseJobFile(sft, dir + "/job.yaml")),
              testing::Contains(AllOf(HasSubstr("eval.datasets.0.answer"),
                                      HasSubstr("kind sft is evaluated on it"))));
}

TEST(JobFile, WhatThisBuildDoesNotHaveIsRefusedByName) {
  for (const char* set :
       {"profile=laptop", "model.digest=ab", "model.dtype=float16", "rollout.timeout=5s",
        "limits.tokens=5", "model.reference=/ref", "rollout.engine.kind=vllm",
        "rollout.sampling.top_p=0.9", "rollout.sampling.top_k=5", "rollout.environment.name=gym",
        "rollout.environment.max_turns=2", "trainer.parallel.tensor=2", "weights.encoding=delta",
        "weights.publish_dtype=bfloat16", "weights.verify=full", "weights.allow_unverified=true",
        "resources.device=cuda", "resources.queue=2"}) {
    const JobFile file = Parse(kMinimal, {set});
    ASSERT_EQ(file.problems.size(), 1u) << set << ": " << absl::StrJoin(ProblemLines(file), " | ");
    EXPECT_EQ(file.problems[0].number, 13) << file.problems[0].ToString();
    EXPECT_THAT(file.problems[0].text, HasSubstr("not in this build"));
  }
}

TEST(JobFile, OnlyAJobThatLearnsFromATeacherAloneNeedsNoRewards) {
  const std::string text =
      "name: d\nmodel: {path: m, teacher: {path: t}}\ndata: {train: [{name: a, path: r}]}\n"
      "checkpoint: {dir: out}\n";
  const JobFile pure = Parse(text, {"algorithm.preset=opd"});
  ASSERT_THAT(ProblemLines(pure), ElementsAre());
  EXPECT_EQ(pure.spec->model().teacher().path(), "/jobs/t");
  EXPECT_EQ(pure.spec->algorithm().distill().kind(), "sampled");
  EXPECT_EQ(pure.spec->algorithm().distill().coef(), 1);

  EXPECT_THAT(ProblemLines(Parse(text)), ElementsAre(HasSubstr("reward.rewards is missing")));
  EXPECT_THAT(ProblemLines(Parse(text, {"algorithm.preset=opd", "eval.every_steps=5",
                                        "eval.datasets=[{name: h, path: h.jsonl}]"})),
              ElementsAre(HasSubstr("nothing scores the answers")));
  // Rewards that are not learned from are reported.
  EXPECT_THAT(
      ProblemLines(Parse(text + "reward: {rewards: [{name: r, verifier: exact, weight: 0}]}\n",
                         {"algorithm.preset=opd"})),
      ElementsAre());
}

TEST(JobFile, ATeacherIsOnlyForAnswersThatTheModelSamples) {
  EXPECT_THAT(ProblemLines(Parse("name: s\nkind: sft\nmodel: {path: m, teacher: {path: t}}\n"
                                 "data: {train: [{name: a, path: r}]}\ncheckpoint: {dir: out}\n")),
              ElementsAre(HasSubstr("model.teacher is given, but kind sft")));
}

TEST(JobFile, ATeacherThatIsNoneOrOfAnotherTokenizerIsToldAtItsPath) {
  const std::string digits = absl::StrCat(SLUICE_SOURCE_DIR, "/configs/examples/digits");
  const auto problems = [&](const std::string& teacher) {
    std::vector<std::string> found;
    for (const std::string& line : ProblemLines(
             ParseJobFile(kMinimal, "/jobs/job.yaml",
                          {.sets = {absl::StrCat("model={init: {config: ", digits,
                                                 "}, teacher: {path: ", teacher, "}}")}}))) {
      if (absl::StrContains(line, "model.teacher")) found.push_back(line);
    }
    return found;
  };
  EXPECT_THAT(problems("/nowhere"),
              ElementsAre(HasSubstr("model.teacher.path: there is no directory /nowhere")));
  // It has a configuration but no weights.
  EXPECT_THAT(problems(digits), ElementsAre(HasSubstr("model.safetensors")));
}

TEST(JobFile, ACriticsDirectoryIsReadBeforeTheJobStarts) {
  const std::string digits = absl::StrCat(SLUICE_SOURCE_DIR, "/configs/examples/digits");
  const auto problems = [&](const std::string& critic) {
    std::vector<std::string> found;
    for (const std::string& line : ProblemLines(ParseJobFile(
             kMinimal, "/jobs/job.yaml",
             {.sets = {absl::StrCat("model={init: {config: ", digits, "}}"),
                       "algorithm.advantage.kind=gae", "trainer.critic.path=" + critic}}))) {
      if (absl::StrContains(line, "trainer.critic")) found.push_back(line);
    }
    return found;
  };
  EXPECT_THAT(problems("/nowhere"),
              ElementsAre(HasSubstr("trainer.critic.path: there is no directory /nowhere")));
  EXPECT_THAT(problems(digits), ElementsAre(HasSubstr("model.safetensors")));
}

TEST(JobFile, ACriticNeedsAnAdvantageThatReadsItAndSaysWhatItNeeds) {
  const JobFile gae =
      Parse(kMinimal, {"algorithm.advantage={kind: gae, lam_value: 1.0}",
                       "trainer.critic={lr: 2e-5, clip: none, warmup: 5}", "rollout.group.size=1"});
  ASSERT_THAT(ProblemLines(gae), ElementsAre());
  EXPECT_EQ(AlgorithmSpecOf(*gae.spec).advantage.lam_value, 1.0);
  EXPECT_EQ(AlgorithmSpecOf(*gae.spec).advantage.lam, 0.95);
  EXPECT_EQ(gae.spec->trainer().critic().lr(), 2e-5);
  EXPECT_FALSE(gae.spec->trainer().critic().has_clip());

  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"trainer.critic.lr=2e-5"})),
              ElementsAre(HasSubstr("trainer.critic is not used by algorithm.advantage.kind: "
                                    "pool_loo, which needs no critic")));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"algorithm.preset=ppo_critic"})),
              ElementsAre(HasSubstr("algorithm.advantage.kl: 0.001 needs a reference model")));
  EXPECT_THAT(
      ProblemLines(Parse(kMinimal, {"algorithm.preset=ppo_critic", "algorithm.advantage.kl=0"})),
      ElementsAre());
  EXPECT_THAT(
      ProblemLines(Parse(kMinimal, {"algorithm.advantage.kind=gae", "trainer.critic.clip=0"})),
      ElementsAre(HasSubstr("trainer.critic.clip is 0, so that no value could move")));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"algorithm.advantage.kind=gae",
                                            "trainer.critic.warmup=50", "limits.max_steps=50"})),
              ElementsAre(HasSubstr("the policy would never be trained")));
  EXPECT_THAT(ProblemLines(Parse(kMinimal, {"algorithm.advantage.lam=0"})),
              ElementsAre(HasSubstr("algorithm.advantage.lam is 0, but has an effect only with")));
}

TEST(JobFile, AKlThatIsHeldNeedsAHorizonOfAtLeastOneStep) {
  const std::vector<std::string> held = {"model.reference=initial",
                                         "algorithm.advantage={kl: 0.01, kl_target: 0.1}"};
  EXPECT_THAT(ProblemLines(Parse(kMinimal, held)), ElementsAre());
  std::vector<std::string> sets = held;
  sets.push_back("algorithm.advantage.kl_horizon=511");  // A step has 64 prompts of 8 answers.
  EXPECT_THAT(ProblemLines(Parse(kMinimal, sets)),
              ElementsAre(HasSubstr("algorithm.advantage.kl_horizon is 511, but the minimum is "
                                    "queue.groups_per_step * rollout.group.size = 512")));
}

TEST(JobFile, SupervisedTrainingTakesNeitherRolloutNorReward) {
  const std::string text =
      "name: s\nkind: sft\nmodel: {path: m}\ndata: {train: [{name: a, path: r}]}\ncheckpoint: "
      "{dir: out}\n";
  EXPECT_THAT(ProblemLines(Parse(text)), ElementsAre());
  EXPECT_THAT(ProblemLines(Parse(text + "reward: {rewards: [{name: r, verifier: exact}]}\n")),
              ElementsAre(HasSubstr("reward is not used by kind: sft")));
  EXPECT_THAT(ProblemLines(Parse(text + "trainer: {critic: {lr: 1}}\n")),
              ElementsAre(HasSubstr("trainer.critic is not used by kind: sft")));
}

TEST(JobFile, MissingFilesAreToldAtTheirValue) {
  const JobFile file = ParseJobFile(kMinimal, "/jobs/job.yaml");
  EXPECT_THAT(
      ProblemLines(file),
      ElementsAre(
          "job.yaml:2:15 SLUICE-CONFIG-0012 model.path: there is no directory m",
          "job.yaml:4:27 SLUICE-CONFIG-0012 data.train.0.path: there is no file rows.jsonl"));
  EXPECT_THAT(ReadJobFile("/nowhere/job.yaml").problems,
              ElementsAre(::testing::Field(&ConfigProblem::number, 1)));
}

TEST(JobFile, EveryExampleLoads) {
  int examples = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SLUICE_SOURCE_DIR) + "/configs/examples")) {
    if (entry.path().extension() != ".yaml") continue;
    ++examples;
    EXPECT_THAT(ProblemLines(ReadJobFile(entry.path().string(), {.check_paths = false})),
                ElementsAre())
        << entry.path();
  }

  EXPECT_GT(examples, 0);
}

TEST(JobFile, AllProblemsComeAtOnceInOrderAndAtMostTwenty) {
  std::string text = "name: demo\nrun:\n";
  for (int i = 0; i < 30; ++i) absl::StrAppend(&text, "  key", i, ": 1\n");
  const JobFile file = Parse(text);

  ASSERT_EQ(file.problems.size(), 20u);
  for (size_t i = 1; i < file.problems.size(); ++i)
    EXPECT_LE(file.problems[i - 1].line, file.problems[i].line);

  EXPECT_EQ(ProblemStatus(file.problems).code(), absl::StatusCode::kInvalidArgument);
}

void CheckRules(const google::protobuf::Descriptor& type, const std::string& path) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const std::string here = config::JoinPath(path, field.name());
    const rpc::v1::FieldRule& rule = config::RuleOf(field);
    if (!config::IsLeaf(field)) {
      CheckRules(*field.message_type(), here);
      continue;
    }

    EXPECT_FALSE(rule.doc().empty()) << here;
    EXPECT_TRUE(rule.has_default_() || rule.required() || !rule.example().empty()) << here;
    EXPECT_FALSE(rule.required() && rule.example().empty()) << here;
  }
}

TEST(JobFile, EveryKeyHasItsDocumentationAndADefaultOrAnExample) {
  CheckRules(*job::v1::JobSpec::descriptor(), "");
}

}  // namespace
}  // namespace sluice
