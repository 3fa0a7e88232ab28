// The files of configs/algorithms, one per preset: what its paper is, and every key of `algorithm`
// with its value under the preset. SLUICE_UPDATE_GOLDEN=1 writes them.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/algorithms/presets.h"
#include "common/base/file.h"
#include "common/config/algorithm_spec.h"
#include "common/config/fields.h"
#include "common/config/job_file.h"
#include "common/config/leaves.h"
#include "sluice/job/v1/job.pb.h"
#include "sluice/rpc/v1/options.pb.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

std::string PathOf(const Row<AlgorithmSpec>& preset) {
  return absl::StrCat(SLUICE_SOURCE_DIR, "/configs/algorithms/", preset.name, ".yaml");
}

// Only with a teacher has the block `distill` an effect.
bool NeedsTeacher(const Row<AlgorithmSpec>& preset) {
  return preset.value.advantage.kind == "none";
}

// The text as comment lines of at most 100 columns.
std::string Comment(const std::string& indent, absl::string_view text) {
  std::string out, line = indent + "#";
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (line.size() + 1 + word.size() > 100) {
      absl::StrAppend(&out, line, "\n");
      line = indent + "#";
    }
    absl::StrAppend(&line, " ", word);
  }
  return absl::StrCat(out, line, "\n");
}

std::string TextOf(const Row<AlgorithmSpec>& preset) {
  job::v1::JobSpec spec;
  config::FillDefaults(&spec);
  ApplyPreset(preset.value, spec.mutable_algorithm());
  std::string text =
      Comment("", absl::StrCat(preset.name, ": ", preset.doc,
                               ". A job file with `algorithm: ", "{preset: ", preset.name,
                               "}` has these values; its other keys replace them."));
  text += "algorithm:\n";
  std::vector<std::pair<std::string, const google::protobuf::Message*>> blocks = {
      {"advantage", &spec.algorithm().advantage()}, {"loss", &spec.algorithm().loss()}};
  if (NeedsTeacher(preset)) blocks.emplace_back("distill", &spec.algorithm().distill());
  for (const auto& [block, message] : blocks) {
    absl::StrAppend(&text, "  ", block, ":\n");
    config::VisitLeaves(*message, true, [&](const config::Leaf& leaf) {
      absl::StrAppend(&text, Comment("    ", config::RuleOf(*leaf.field).doc()), "    ", leaf.path,
                      ": ", config::LeafText(*leaf.message, *leaf.field), "\n");
    });
  }
  return text;
}

TEST(PresetFiles, EachSaysWhatItsPresetIsAndIsReadAsIt) {
  for (const Row<AlgorithmSpec>& preset : PresetRows()) {
    if (std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
      ASSERT_EQ(WriteFileAtomic(PathOf(preset), TextOf(preset)), absl::OkStatus());
    }
    const absl::StatusOr<std::string> text = ReadFile(PathOf(preset));
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, TextOf(preset)) << "SLUICE_UPDATE_GOLDEN=1 config_test writes it";

    const JobFile file = ParseJobFile(
        absl::StrCat("name: demo\nmodel: {path: m, reference: initial",
                     NeedsTeacher(preset) ? ", teacher: {path: t}" : "",
                     "}\ndata: {train: [{name: a, path: r.jsonl}]}\n"
                     "reward: {rewards: [{name: r, verifier: exact}]}\ncheckpoint: {dir: out}\n",
                     *text),
        "/jobs/job.yaml", {.check_paths = false});
    EXPECT_EQ(ProblemStatus(file.problems), absl::OkStatus()) << preset.name;
    EXPECT_TRUE(AlgorithmSpecOf(*file.spec) == preset.value) << preset.name;
  }
  EXPECT_EQ(ListDir(absl::StrCat(SLUICE_SOURCE_DIR, "/configs/algorithms"))->size(),
            PresetRows().size());
}

TEST(ExplainKey, AWordSaysItsMeaningDefaultPresetsAndWhatEachValueIs) {
  const std::string text = *ExplainKey("algorithm.loss.kind");
  EXPECT_THAT(text, HasSubstr("algorithm.loss.kind\n  The policy loss.\n  default: dapo\n"));
  EXPECT_THAT(text, HasSubstr("with preset moe_gspo: gspo\n"));
  EXPECT_THAT(text, HasSubstr("    cispo                 the ratio, clipped to"));
  EXPECT_THAT(text, HasSubstr("arXiv 2506.13585"));
}

TEST(ExplainKey, ANumberSaysItsBoundsAndUnit) {
  const std::string text = *ExplainKey("algorithm.loss.opsm");
  EXPECT_THAT(text, HasSubstr("  default: none\n"));
  EXPECT_THAT(text, HasSubstr("  nats\n"));
  EXPECT_THAT(text, HasSubstr("  from 0\n"));
}

TEST(ExplainKey, ABlockListsItsKeysAndAListSaysThatItIsOne) {
  EXPECT_THAT(*ExplainKey("trainer.optimizer"),
              HasSubstr("  lr                      Learning rate."));
  EXPECT_THAT(*ExplainKey("reward.rewards"), HasSubstr("A list"));
  EXPECT_EQ(*ExplainKey("reward.rewards.0.verifier"), *ExplainKey("reward.rewards.verifier"));
}

TEST(ExplainKey, AKeyThatDoesNotExistIsAnErrorWithTheNearestOne) {
  const absl::Status status = ExplainKey("trainer.optimizer.learning_rate").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Did you mean lr?"));
  EXPECT_THAT(std::string(ExplainKey("name.first").status().message()),
              HasSubstr("no keys of its own"));
}

TEST(ExplainKey, EveryKeyOfTheJobFileIsExplained) {
  job::v1::JobSpec spec;
  config::FillDefaults(&spec);
  int keys = 0;
  config::VisitLeaves(spec, true, [&](const config::Leaf& leaf) {
    ++keys;
    EXPECT_TRUE(ExplainKey(leaf.rule_path).ok()) << leaf.rule_path;
  });
  EXPECT_GT(keys, 80);
}

}  // namespace
}  // namespace sluice
