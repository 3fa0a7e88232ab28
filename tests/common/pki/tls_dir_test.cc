#include "common/pki/tls_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::pki {
namespace {
using ::testing::HasSubstr;

const absl::Time kToday = absl::FromUnixSeconds(1'800'000'000);

class TlsDirTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  TlsFiles Issue() {
    const Subject subject = {.name = "queue-0", .uri = "spiffe://test/sluice/queue/queue-0"};
    return {*IssueCertificate(authority_, subject, {kToday, kToday + absl::Hours(24)}),
            authority_.certificate};
  }
  std::string Path(const char* name) const { return absl::StrCat(dir_, "/", name); }

  const std::string dir_ = absl::StrCat(::testing::TempDir(), "/tls_dir_test_", getpid());
  const KeyPair authority_ = *MakeAuthority({.name = "authority", .uri = "spiffe://test"},
                                            {kToday, kToday + absl::Hours(48)});
};

TEST_F(TlsDirTest, WhatIsWrittenIsReadAndReplaced) {
  ASSERT_TRUE(WriteTlsDir(dir_, Issue()).ok());
  const TlsFiles second = Issue();
  ASSERT_TRUE(WriteTlsDir(dir_, second).ok());

  const absl::StatusOr<TlsFiles> read = ReadTlsDir(dir_, kToday);

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->pair.certificate, second.pair.certificate);
  EXPECT_EQ(read->pair.key.Reveal(), second.pair.key.Reveal());
  EXPECT_EQ(ListDir(dir_)->size(), 5u);  // Three links, `..data`, and the present set.
}

TEST_F(TlsDirTest, OnlyTheOwnerMayReadTheKey) {
  ASSERT_TRUE(WriteTlsDir(dir_, Issue()).ok());

  struct stat info = {};
  ASSERT_EQ(stat(Path(kKeyFile).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);

  ASSERT_EQ(chmod(Path(kKeyFile).c_str(), 0644), 0);
  EXPECT_EQ(ReasonOf(ReadTlsDir(dir_, kToday).status()), "KEY_MODE");
  ASSERT_EQ(chmod(Path(kKeyFile).c_str(), 0640), 0);
  EXPECT_TRUE(ReadTlsDir(dir_, kToday).ok());
}

// A kubelet writes the files of a Secret with `defaultMode`, gives them to root and to the pod's
// `fsGroup`, and links to them as WriteTlsDir() does.
TEST_F(TlsDirTest, ASecretThatKubernetesHasMountedIsRead) {
  ASSERT_TRUE(WriteTlsDir(dir_, Issue()).ok());
  ASSERT_EQ(chmod(dir_.c_str(), 03777), 0);
  for (const char* name : {kCertificateFile, kKeyFile, kAuthorityFile})
    ASSERT_EQ(chmod(Path(name).c_str(), 0440), 0);

  const absl::Status status = ReadTlsDir(dir_, kToday).status();

  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(TlsDirTest, AMissingFileIsNamed) {
  ASSERT_TRUE(WriteTlsDir(dir_, Issue()).ok());
  ASSERT_EQ(unlink(Path(kAuthorityFile).c_str()), 0);

  const absl::Status status = ReadTlsDir(dir_, kToday).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no file ca.crt"));
}

TEST_F(TlsDirTest, ReplacesPlainFilesThatAPersonPutThere) {
  ASSERT_TRUE(MakeDirs(dir_).ok());
  ASSERT_TRUE(WriteFileAtomic(Path(kCertificateFile), "old").ok());
  ASSERT_TRUE(WriteTlsDir(dir_, Issue()).ok());

  EXPECT_TRUE(ReadTlsDir(dir_, kToday).ok());
}

TEST_F(TlsDirTest, AReaderNeverSeesAKeyWithAnotherCertificate) {
  ASSERT_TRUE(WriteTlsDir(dir_, Issue()).ok());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(WriteTlsDir(dir_, Issue()).ok());
    done = true;
  });

  int reads = 0;
  for (; !done; ++reads) {
    const absl::Status status = ReadTlsDir(dir_, kToday).status();
    EXPECT_TRUE(status.ok()) << status;
  }
  writer.join();

  EXPECT_GT(reads, 0);
}

}  // namespace
}  // namespace sluice::pki
