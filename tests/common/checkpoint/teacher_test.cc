#include "common/checkpoint/teacher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/checkpoint/critic.h"
#include "common/testing/data.h"

namespace sluice {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TeacherTest : public testing::Test {
 protected:
  ModelDir Make(int vocab, int context, const std::string& tokenizer) {
    const std::string dir = testing_data::TempPath(ToHex(RandomId16()));
    EXPECT_TRUE(MakeDirs(dir).ok());
    EXPECT_TRUE(
        WriteFileAtomic(dir + "/config.json",
                        absl::StrCat(R"({"architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": )",
                                     vocab, R"(, "max_position_embeddings": )", context, "}"))
            .ok());
    if (!tokenizer.empty()) {
      EXPECT_TRUE(WriteFileAtomic(dir + "/tokenizer.json", tokenizer).ok());
    }
    return *ReadModelDir(dir);
  }
};

TEST_F(TeacherTest, ATeacherNeedsTheVocabularyTheTokenizerAndTheContextOfItsStudent) {
  const ModelDir student = Make(16, 32, "{}");
  EXPECT_EQ(CheckTeacher(student, Make(16, 32, "{}"), 32), absl::OkStatus());
  EXPECT_EQ(CheckTeacher(student, Make(16, 16, "{}"), 16), absl::OkStatus());
  EXPECT_EQ(CheckTeacher(student, Make(16, 32, ""), 32), absl::OkStatus());

  const ModelDir larger = Make(17, 32, "{}"), other = Make(16, 32, "{ }"),
                 shorter = Make(16, 31, "{}");
  for (const ModelDir* teacher : {&larger, &other, &shorter}) {
    const absl::Status status = CheckTeacher(student, *teacher, 32);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(teacher->path), HasSubstr(student.path)));
  }
  EXPECT_THAT(std::string(CheckTeacher(student, larger, 32).message()),
              AllOf(HasSubstr("17 tokens"), HasSubstr("has 16")));
  EXPECT_THAT(std::string(CheckTeacher(student, other, 32).message()),
              // The SHA-256 of "{}".
              HasSubstr("44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"));
  EXPECT_THAT(std::string(CheckTeacher(student, shorter, 32).message()), HasSubstr("31 tokens"));
}

TEST_F(TeacherTest, ACriticNeedsTheShapeAndTheTokenizerOfItsPolicy) {
  const ModelDir policy = Make(16, 32, "{}");
  EXPECT_EQ(CheckCritic(policy, Make(16, 16, "{}")), absl::OkStatus());
  EXPECT_EQ(CheckCritic(policy, Make(16, 32, "")), absl::OkStatus());
  EXPECT_THAT(std::string(CheckCritic(policy, Make(16, 32, "{ }")).message()),
              HasSubstr("the tokenizer of the critic is not that of the model"));
  EXPECT_THAT(std::string(CheckCritic(policy, Make(17, 32, "{}")).message()),
              AllOf(HasSubstr("has vocab_size 17, but the model "), HasSubstr(policy.path)));

  // Weights of the same shapes mean something else under other numbers.
  ModelDir other = Make(16, 32, "{}");
  other.config.rope.theta = 5000;
  EXPECT_THAT(std::string(CheckCritic(policy, other).message()), HasSubstr("has rope_theta 5000"));
  other = Make(16, 32, "{}");
  other.config.tie_word_embeddings = !policy.config.tie_word_embeddings;
  EXPECT_EQ(CheckCritic(policy, other), absl::OkStatus()) << "the head is not used";
}

TEST_F(TeacherTest, ACheckpointWithACriticIsNotReadAsItsPolicy) {
  const ModelDir policy = Make(16, 32, "{}");
  for (const char* name : {"/critic.safetensors", "/critic.safetensors.index.json"}) {
    const ModelDir checkpoint = Make(16, 32, "{}");
    ASSERT_TRUE(WriteFileAtomic(checkpoint.path + name, "").ok());
    const absl::Status status = CheckCritic(policy, checkpoint);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(checkpoint.path), HasSubstr("of that job's policy")));
  }
}

}  // namespace
}  // namespace sluice
