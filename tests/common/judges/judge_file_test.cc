#include "common/judges/judge_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

// Writes a key that only the owner may read, and a judges file that can name it as `key`.
absl::StatusOr<std::vector<JudgeConfig>> Read(const std::string& text,
                                              const std::string& key = "s3cret\n",
                                              mode_t mode = 0600) {
  const std::string path = testing_data::TempPath("judges.yaml");
  const std::string key_path = absl::StrCat(path.substr(0, path.rfind('/')), "/key");
  EXPECT_TRUE(WriteFileAtomic(key_path, key).ok());
  EXPECT_EQ(chmod(key_path.c_str(), mode), 0);
  EXPECT_TRUE(WriteFileAtomic(path, text).ok());
  return ReadJudges(path);
}

constexpr char kBegin[] = "judges:\n- {name: strict, model: m, url: ";

TEST(JudgeFileTest, AJudgeHasDefaultsAndItsKeyComesFromAFile) {
  const auto judges =
      Read(absl::StrCat(kBegin, "\"https://judge.example.com/v1/\", key_file: key}"));
  ASSERT_TRUE(judges.ok()) << judges.status();
  ASSERT_EQ(judges->size(), 1u);
  const JudgeConfig& judge = (*judges)[0];
  EXPECT_EQ(judge.name, "strict");
  EXPECT_EQ(judge.url, "https://judge.example.com/v1/chat/completions");
  EXPECT_EQ(judge.key.Reveal(), "s3cret");
  EXPECT_EQ(judge.max_in_flight, 64u);
  EXPECT_EQ(judge.tokens, std::nullopt);
  EXPECT_FALSE(judge.loopback);
}

TEST(JudgeFileTest, TheExampleCanBeRead) {
  EXPECT_EQ(ReadJudges(SLUICE_SOURCE_DIR "/configs/judges.yaml").status(), absl::OkStatus());
}

TEST(JudgeFileTest, AKeyDoesNotCrossANetworkInClear) {
  EXPECT_THAT(
      Read(absl::StrCat(kBegin, "\"http://10.0.0.7/v1\", key_file: key}")).status().message(),
      HasSubstr("would send the key of key_file to 10.0.0.7 in clear"));
  EXPECT_TRUE(Read(absl::StrCat(kBegin, "\"http://10.0.0.7/v1\"}")).ok());
  EXPECT_TRUE(Read(absl::StrCat(kBegin, "\"http://127.0.0.1:8000/v1\", key_file: key}")).ok());
  EXPECT_TRUE(Read(absl::StrCat(kBegin, "\"http://[::1]:8000/v1\", key_file: key}")).ok());
  // This host only begins like loopback's.
  EXPECT_FALSE(Read(absl::StrCat(kBegin, "\"http://127.0.0.1.evil.com/v1\", key_file: key}")).ok());
}

TEST(JudgeFileTest, MistakesAreRefusedWithTheirPlaceAndWithoutTheKey) {
  const std::string https = absl::StrCat(kBegin, "\"https://a/v1\"");
  const std::tuple<std::string, std::string, mode_t, const char*> cases[] = {
      {absl::StrCat(https, ", key_file: key}"), "s3cret", 0644, "can be read by every user"},
      {absl::StrCat(https, ", key_file: key}"), " \n", 0600, "is empty"},
      {absl::StrCat(https, ", key_file: key}"), "s3cret\nX-Evil: 1", 0600, "more than one word"},
      {absl::StrCat(https, ", key_file: nokey}"), "s3cret", 0600, "nokey"},
      {absl::StrCat(kBegin, "\"ftp://a/v1\"}"), "s3cret", 0600, "url is \"ftp://a/v1\""},
      {absl::StrCat(kBegin, "\"https://me:pw@a/v1\"}"), "s3cret", 0600, "without a user"},
      {absl::StrCat(kBegin, "\"https:///v1\"}"), "s3cret", 0600, "must be like"},
      {absl::StrCat(https, "}\n- {name: strict, model: m, url: \"https://b/v1\"}"), "s3cret", 0600,
       "judges.yaml:3:3 SLUICE-CONFIG-0010 judges.1: the name \"strict\" is used twice"},
      {absl::StrCat(https, ", max_in_flight: 0}"), "s3cret", 0600, "the minimum is 1"},
      {"judges:\n- {name: a, model: m}\n", "s3cret", 0600, "judges.0.url is missing"},
      {"judge: []\n", "s3cret", 0600, "unknown key \"judge\" in the judges file"},
  };
  for (const auto& [text, key, mode, message] : cases) {
    const absl::Status status = Read(text, key, mode).status();
    EXPECT_EQ(ReasonOf(status), "BAD_CONFIG") << text << status;
    EXPECT_THAT(status.message(), HasSubstr(message)) << text;
    EXPECT_THAT(status.message(), Not(HasSubstr("s3cret"))) << text;
  }
}

}  // namespace
}  // namespace sluice
