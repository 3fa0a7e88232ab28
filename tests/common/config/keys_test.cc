// Tests that every key of the job file is either read or refused when it is set, so that no key is
// accepted and then ignored.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/config/bind.h"
#include "common/config/choices.h"
#include "common/config/fields.h"
#include "common/config/job_file.h"
#include "common/config/refused.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using Visit = std::function<void(const FieldDescriptor&, const std::string&)>;

void VisitKeys(const Descriptor& type, const std::string& path, const Visit& visit) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string here = JoinPath(path, field.name());
    if (IsLeaf(field)) visit(field, here);
    else VisitKeys(*field.message_type(), here, visit);
  }
}

constexpr char kController[] = "services/controller/spec.cc";
constexpr char kTrainer[] = "services/trainer/config.cc";
constexpr char kTraining[] = "services/trainer/job_settings.cc";
constexpr char kRollout[] = "services/rollout/spec.cc";
constexpr char kEngine[] = "services/rollout/engine_spec.cc";
constexpr char kReward[] = "common/scoring/job_scorer.cc";
constexpr char kColumns[] = "common/config/columns.cc";
constexpr char kAlgorithm[] = "common/config/algorithm_spec.cc";

// The source file that reads a key, or all keys of a block. The longest path that matches decides.
const std::map<std::string, std::string> kReaders = {
    {"name", kController},
    {"kind", kController},
    {"run", kController},
    {"model", kTrainer},
    {"model.dtype", kTraining},
    {"data.train", kController},
    {"data.train.format", kTrainer},
    {"data.train.prompt", kColumns},
    {"data.train.answer", kColumns},
    {"data.train.fields", kColumns},
    {"data.train.path", kColumns},
    {"data.train.generator", kColumns},
    {"data.order", kController},
    {"rollout", kRollout},
    {"rollout.engine", kEngine},
    {"rollout.group.first_wave", kController},
    {"rollout.group.min", kController},
    {"reward", kReward},
    {"reward.sandbox", "services/reward/sandboxes.cc"},
    {"reward.rewards.tries", kController},
    {"algorithm", kAlgorithm},
    {"algorithm.loss", "common/algorithms/spec.h"},
    {"trainer", kTraining},
    {"trainer.critic.path", kTrainer},
    {"trainer.parallel.data", "common/config/rules.cc"},  // Only checked.
    {"trainer.parallel.collective_timeout", kTrainer},
    {"queue", "services/queue/convert.cc"},
    {"queue.keep.restore", kTrainer},
    {"weights", kTrainer},
    {"weights.canary", kTrainer},
    {"weights.fan_out", kRollout},
    {"weights.inflight", kEngine},
    {"weights.resident_versions", kEngine},
    {"weights.shared_memory", kRollout},
    {"weights.broadcast", kRollout},
    {"weights.ucx", kRollout},
    {"weights.kv_cache", kRollout},
    {"weights.max_version_span", kController},
    {"checkpoint", kTrainer},
    {"eval", kRollout},
    {"eval.every_steps", kTrainer},
    {"eval.datasets.prompt", kColumns},
    {"eval.datasets.answer", kColumns},
    {"eval.datasets.fields", kColumns},
    {"eval.datasets.path", kColumns},
    {"eval.datasets.generator", kColumns},
    {"eval.datasets.weight", "common/config/rules.cc"},  // Only checked: it must be 1.
    {"resources", kController},
    {"limits", kController},
    {"limits.skipped_steps", kTraining},
};

std::string ReaderOf(const std::string& path) {
  for (std::string at = path;; at = at.substr(0, at.rfind('.'))) {
    if (const auto found = kReaders.find(at); found != kReaders.end()) return found->second;
    if (at.find('.') == std::string::npos) return "";
  }
}

TEST(Keys, EachIsReadBySomebodyOrRefusedWhenItIsSet) {
  int keys = 0;
  VisitKeys(*job::v1::JobSpec::descriptor(), "",
            [&](const FieldDescriptor& field, const std::string& path) {
              ++keys;
              if (RefusalOf(path, "") != nullptr) return;
              // A key that has only one legal word needs no reader.
              if (BuiltChoicesOf(field, path).size() == 1 && UnsetWord(field) != "none") return;
              // The preset's values are merged when the file is read, which job_file_test.cc tests.
              if (path == "algorithm.preset") return;

              const std::string reader = ReaderOf(path);
              ASSERT_NE(reader, "") << path << " is neither refused nor read";

              const std::string text = *ReadFile(absl::StrCat(SLUICE_SOURCE_DIR, "/", reader));
              const bool read =
                  absl::StrContains(text, absl::StrCat(field.name(), "(")) ||
                  absl::StrContains(text, absl::StrCat("visit(\"", field.name(), "\""));
              EXPECT_TRUE(read) << path << " is not read by " << reader << ", nor refused";
            });

  EXPECT_GT(keys, 100);  // A walk that misses keys must not pass.
}

TEST(Keys, EveryRefusalIsOfAKeyAndAWordThatTheJobFileHas) {
  for (const Refusal& row : Refusals()) {
    int found = 0;
    VisitKeys(*job::v1::JobSpec::descriptor(), "",
              [&](const FieldDescriptor& field, const std::string& path) {
                if (path == row.path || absl::StartsWith(path, absl::StrCat(row.path, ".")))
                  ++found;
              });

    EXPECT_GT(found, 0) << row.path;
    EXPECT_TRUE(!row.instead.empty() || !row.words.empty())
        << row.path << " says nothing of what to use instead";
    EXPECT_TRUE(!row.why.empty() || !row.words.empty()) << row.path << " says nothing of why";
  }
}

TEST(Keys, ThePrintedDefaultsMarkWhatIsRefusedAndListWhatThereIs) {
  const std::string text = JobFileDefaults();
  EXPECT_THAT(text, testing::HasSubstr("(rl | sft | dpo)"));
  EXPECT_THAT(text,
              testing::HasSubstr("native | sglang (not in this build) | vllm (not in this build)"));
  EXPECT_THAT(text, testing::HasSubstr("# (not in this build) Turns of an episode."));
  EXPECT_THAT(text, testing::HasSubstr("# (not in this build, but for cpu) "));
  EXPECT_THAT(text, testing::HasSubstr("(grpo | dr_grpo | rloo | pool_loo | lite_ppo | maxrl | "));
  EXPECT_THAT(text,
              testing::HasSubstr("(required; code | countdown | exact | format | gsm8k | "
                                 "ifeval | json_schema | judge | math | multiple_choice | plugin "
                                 "| regex | text)"));
  EXPECT_THAT(
      text,
      testing::HasSubstr(
          "(token_mean | seq_mean_token_mean | seq_mean_token_sum | fixed_length | prompt_mean)"));
}

}  // namespace
}  // namespace sluice::config
