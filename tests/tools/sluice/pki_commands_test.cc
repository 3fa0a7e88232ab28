// `sluice pki`: what it writes, shows and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/pki/tls_dir.h"
#include "tools/sluice/app.h"

namespace sluice::cli {
namespace {
using ::testing::HasSubstr;

class PkiCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Runs `sluice pki ARGS..`, and keeps what it prints.
  ExitCode Pki(std::vector<std::string> args) {
    SluiceApp app;
    args.insert(args.begin(), {"sluice", "pki"});
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    ExitCode code = kMisuse;
    try {
      app.parser().parse(static_cast<int>(argv.size()), argv.data());
      code = app.Run();
    } catch (const CLI::ParseError&) {
    }
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  std::string Dir(const char* name) const { return absl::StrCat(dir_, "/", name); }

  const std::string dir_ = absl::StrCat(::testing::TempDir(), "/pki_commands_test_", getpid());
  std::string out_, err_;
};

TEST_F(PkiCommandsTest, AnIssuedFolderCanBeUsedAndShown) {
  ASSERT_EQ(Pki({"init", Dir("ca"), "--domain", "prod"}), kDone) << err_;
  ASSERT_EQ(Pki({"issue", "queue", "queue-0", "--ca", Dir("ca"), "--out", Dir("q"), "--days", "7",
                 "--host", "localhost"}),
            kDone)
      << err_;

  ASSERT_EQ(Pki({"show", Dir("q"), "-o", "json"}), kDone) << err_;

  const nlohmann::json shown = nlohmann::json::parse(out_);
  EXPECT_EQ(shown["identity"], "spiffe://prod/sluice/queue/queue-0");
  EXPECT_EQ(shown["hosts"], nlohmann::json({"localhost"}));
  EXPECT_EQ(shown["usable"], true);
  EXPECT_TRUE(pki::ReadTlsDir(Dir("q"), absl::Now() + absl::Hours(24 * 7 - 1)).ok());
  EXPECT_FALSE(pki::ReadTlsDir(Dir("q"), absl::Now() + absl::Hours(24 * 7 + 1)).ok());
}

TEST_F(PkiCommandsTest, AnAuthorityIsNeverOverwritten) {
  ASSERT_EQ(Pki({"init", Dir("ca")}), kDone);
  const std::string key = *ReadFile(Dir("ca/ca.key"));

  EXPECT_EQ(Pki({"init", Dir("ca")}), kConflict);
  EXPECT_EQ(*ReadFile(Dir("ca/ca.key")), key);
}

TEST_F(PkiCommandsTest, ACertificateEndsWithItsAuthorityAtTheLatest) {
  ASSERT_EQ(Pki({"init", Dir("ca"), "--days", "10"}), kDone);
  ASSERT_EQ(Pki({"issue", "rollout", "*", "--ca", Dir("ca"), "--out", Dir("r")}), kDone) << err_;

  const auto authority = *pki::ParseCertificate(*ReadFile(Dir("ca/ca.crt")));
  const auto certificate = *pki::ParseCertificate(*ReadFile(Dir("r/tls.crt")));
  EXPECT_EQ(certificate.validity.until, authority.validity.until);
  EXPECT_EQ(certificate.subject.uri, "spiffe://sluice/sluice/rollout/*");
}

TEST_F(PkiCommandsTest, AFolderThatCannotBeUsedIsShownWithTheReason) {
  ASSERT_EQ(Pki({"init", Dir("ca")}), kDone);
  ASSERT_EQ(Pki({"init", Dir("other")}), kDone);
  ASSERT_EQ(Pki({"issue", "queue", "queue-0", "--ca", Dir("ca"), "--out", Dir("q")}), kDone);
  ASSERT_TRUE(WriteFileAtomic(Dir("q/ca.crt"), *ReadFile(Dir("other/ca.crt"))).ok());

  EXPECT_EQ(Pki({"show", Dir("q")}), kFailed);

  EXPECT_THAT(out_, HasSubstr("spiffe://sluice/sluice/queue/queue-0"));
  EXPECT_THAT(err_, HasSubstr("is not trusted"));
}

TEST_F(PkiCommandsTest, BadNamesAndMissingAuthoritiesAreMisuseOrNotFound) {
  EXPECT_EQ(Pki({"init", Dir("ca"), "--domain", "a/b"}), kMisuse);
  ASSERT_EQ(Pki({"init", Dir("ca")}), kDone);
  EXPECT_EQ(Pki({"issue", "queue", "../x", "--ca", Dir("ca"), "--out", Dir("q")}), kMisuse);
  EXPECT_EQ(Pki({"issue", "king", "x", "--ca", Dir("ca"), "--out", Dir("q")}), kMisuse);
  EXPECT_EQ(Pki({"issue", "queue", "x", "--ca", Dir("none"), "--out", Dir("q")}), kNotFound);
  EXPECT_THAT(err_, HasSubstr("sluice pki init"));
  EXPECT_EQ(Pki({"show", Dir("none")}), kNotFound);
}

}  // namespace
}  // namespace sluice::cli
