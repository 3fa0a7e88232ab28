#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/testing/data.h"

namespace sluice {
namespace {

TEST(DigestTest, Crc32cMatchesThePublishedCheckValue) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
}

TEST(DigestTest, Crc32cGoesOnOverPieces) {
  EXPECT_EQ(Crc32c("456789", Crc32c("123")), Crc32c("123456789"));
}

TEST(DigestTest, Crc32cOfEveryLengthIsWhatItsBytesOneByOneGive) {
  std::string bytes(1300, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37 + (i >> 3));
  uint32_t slow = 0;
  std::string copy(bytes.size() + 1, '#');

  for (size_t n = 0; n < bytes.size(); ++n) {
    const absl::string_view head(bytes.data(), n);
    ASSERT_EQ(Crc32c(head), slow) << n;
    ASSERT_EQ(Crc32cCopy(head, copy.data()), slow) << n;
    ASSERT_EQ(copy.substr(0, n), head);
    ASSERT_EQ(copy[n], '#');
    slow = Crc32c({bytes.data() + n, 1}, slow);
    copy.assign(bytes.size() + 1, '#');
  }
}

TEST(DigestTest, Crc32cOfAConcatenationComesFromTheCrcsOfItsParts) {
  SplitMix64 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string a(random.Below(100), 'x'), b(random.Below(5000), 'y');
    for (char& c : a) c = static_cast<char>(random.Next());
    for (char& c : b) c = static_cast<char>(random.Next());
    EXPECT_EQ(Crc32cConcat(Crc32c(a), Crc32c(b), b.size()), Crc32c(a + b)) << "case " << i;
  }
}

TEST(DigestTest, Crc32cCopyCopiesAndSums) {
  const std::string from(100'000, 'q');
  std::string to(from.size(), '\0');
  EXPECT_EQ(Crc32cCopy(from, to.data()), Crc32c(from));
  EXPECT_EQ(to, from);
}

TEST(DigestTest, Sha256MatchesThePublishedVector) {
  EXPECT_EQ(ToHex(Sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(StatusTest, AnErrorKeepsItsDetailWhenAnnotated) {
  const absl::Status error =
      ErrorWith(absl::StatusCode::kAborted,
                {.reason = "FENCED", .hint = "stop", .retry_after = absl::Seconds(2)}, "old");
  const absl::Status annotated = Annotate(error, "Apply");

  EXPECT_EQ(annotated.message(), "Apply: old");
  EXPECT_EQ(ReasonOf(annotated), "FENCED");
  EXPECT_EQ(DetailOf(annotated).hint, "stop");
  EXPECT_EQ(DetailOf(annotated).retry_after, absl::Seconds(2));
}

TEST(StatusTest, AHintMayHoldAnyByte) {
  // 0x1f separates the parts of a stored detail, so it becomes a space in all parts but the last,
  // which is `current`.
  const absl::Status error = ErrorWith(absl::StatusCode::kAborted,
                                       {.reason = "X",
                                        .hint = "a\x1f"
                                                "b",
                                        .current = "c\x1f"
                                                   "d"},
                                       "m");

  EXPECT_EQ(DetailOf(error).hint, "a b");
  EXPECT_EQ(DetailOf(error).current,
            "c\x1f"
            "d");
}

TEST(Utf8Test, APrefixEndsBetweenTwoCharacters) {
  EXPECT_EQ(Utf8Prefix("a\xc3\xa9z", 4), "a\xc3\xa9z");
  EXPECT_EQ(Utf8Prefix("a\xc3\xa9z", 3), "a\xc3\xa9");
  EXPECT_EQ(Utf8Prefix("a\xc3\xa9z", 2), "a");
  EXPECT_EQ(Utf8Prefix("\xf0\x9f\x98\x80", 3), "");
}

TEST(IdTest, HexRoundTripsAndRefusesRubbish) {
  EXPECT_EQ(*FromHex("00ff10"), std::string("\0\xff\x10", 3));
  EXPECT_FALSE(FromHex("0").ok());
  EXPECT_FALSE(FromHex("zz").ok());
}

TEST(FileTest, AnAtomicWriteReplacesAndLeavesNoTemporary) {
  const std::string dir = testing::TempDir() + "/file_test_" + ToHex(RandomId16());
  ASSERT_TRUE(MakeDirs(dir).ok());
  ASSERT_TRUE(WriteFileAtomic(dir + "/a", "one").ok());
  ASSERT_TRUE(WriteFileAtomic(dir + "/a", "two").ok());

  EXPECT_EQ(*ReadFile(dir + "/a"), "two");
  EXPECT_THAT(*ListDir(dir), testing::ElementsAre("a"));
  EXPECT_EQ(ReadFile(dir + "/a", 2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(dir + "/b").status().code(), absl::StatusCode::kNotFound);

  ASSERT_TRUE(RemoveTree(dir).ok());
}

TEST(FileTest, TheDigestOfAWriteIsThatOfTheFile) {
  const std::string path = testing::TempDir() + "/digest_" + ToHex(RandomId16());
  const std::string large(3 << 20, 'x');  // Longer than the 1 MiB pieces of a write.
  const absl::string_view pieces[] = {"one", large, "", "two"};

  FileDigest written;
  ASSERT_TRUE(WriteFileAtomic(path, pieces, &written).ok());
  EXPECT_EQ(written.bytes, large.size() + 6);
  EXPECT_EQ(written.sha256, Sha256(absl::StrCat("one", large, "two")));
  EXPECT_EQ(*DigestFile(path), written);

  unlink(path.c_str());
}

TEST(FileTest, AFileLargerThanFourGigabytesIsReadInPieces) {
  const std::string path = testing::TempDir() + "/sparse_" + ToHex(RandomId16());
  const uint64_t bytes = (4ull << 30) + 1;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600);
  ASSERT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  close(fd);

  uint64_t read = 0;
  size_t largest = 0;
  const absl::Status status = ReadFileInPieces(path, [&](absl::string_view piece) {
    read += piece.size();
    largest = std::max(largest, piece.size());
    return absl::OkStatus();
  });

  unlink(path.c_str());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(read, bytes);
  EXPECT_LE(largest, 1u << 20);
}

TEST(FileTest, ACopyIsDigestedBeforeAndAfterItsTail) {
  const std::string from = testing::TempDir() + "/copy_" + ToHex(RandomId16()), to = from + ".to";
  ASSERT_TRUE(WriteFileAtomic(from, "abc").ok());
  const auto copied = CopyFile(from, to, "de");
  ASSERT_TRUE(copied.ok()) << copied.status();

  EXPECT_EQ(copied->from, (FileDigest{3, Sha256("abc")}));
  EXPECT_EQ(copied->to, (FileDigest{5, Sha256("abcde")}));
  EXPECT_EQ(*ReadFile(to), "abcde");
  EXPECT_EQ(CopyFile(from, to).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(CopyFile(from + ".none", to + "2").status().code(), absl::StatusCode::kNotFound);

  for (const std::string& path : {from, to, to + "2"}) unlink(path.c_str());
}

TEST(FileTest, AFileThatTellsNoSizeIsReadToItsEnd) {
  const auto status = ReadFile("/proc/self/status");
  ASSERT_TRUE(status.ok());
  EXPECT_THAT(*status, testing::HasSubstr("VmRSS"));
  EXPECT_EQ(ReadFile("/proc/self/status", 10).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(FileTest, AFifoIsRefusedThoughNobodyWritesToIt) {
  const std::string path = testing::TempDir() + "/fifo_" + ToHex(RandomId16());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);

  // If ReadFile() waited for a writer, this thread would release it.
  std::thread writer([&] { close(open(path.c_str(), O_WRONLY)); });
  const auto bytes = ReadFile(path);

  EXPECT_EQ(bytes.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(bytes.status().message(), path + " is a FIFO; a file is needed");

  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);  // Releases the writer.
  writer.join();
  close(reader);
  unlink(path.c_str());
}

TEST(FileTest, ASocketADeviceAndADirectoryAreRefusedAsWhatTheyAre) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  // A relative path, because the path of a socket has at most 107 bytes.
  const std::string path = absl::StrCat("socket_", ToHex(RandomId16()));
  std::memcpy(address.sun_path, path.data(), path.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);

  EXPECT_EQ(ReadFile(path).status().message(), path + " is a socket; a file is needed");
  close(listener);
  unlink(path.c_str());

  EXPECT_EQ(ReadFile("/dev/zero").status().message(), "/dev/zero is a device; a file is needed");
  EXPECT_EQ(ReadFile("/dev").status().message(), "/dev is a directory; a file is needed");
}

TEST(FileTest, AStreamThatTheProcessWasGivenIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "name: x\n", 8), 8);
  close(ends[1]);

  EXPECT_EQ(*ReadFile(absl::StrCat("/dev/fd/", ends[0])), "name: x\n");
  close(ends[0]);
}

TEST(FileTest, ASecondOwnerOfADirectoryIsRefusedWithThePidOfTheFirst) {
  const std::string dir = testing_data::TempPath(ToHex(RandomId16()));
  auto first = DirLock::Acquire(dir);
  ASSERT_TRUE(first.ok());
  const auto second = DirLock::Acquire(dir);

  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), testing::HasSubstr(std::to_string(getpid())));
}

TEST(FileTest, AnOwnerIsNotRefusedWithThePidOfAnEarlierOwnerWhileADirectoryIsRead) {
  const std::string dir = testing_data::TempPath(ToHex(RandomId16()));
  ASSERT_TRUE(DirLock::Acquire(dir).ok());  // Writes its pid, and ends.
  const auto reader = DirLock::AcquireShared(dir);
  ASSERT_TRUE(reader.ok());
  const auto owner = DirLock::Acquire(dir);

  EXPECT_EQ(owner.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(owner.status()), "DATA_DIR_IN_USE");
  EXPECT_EQ(std::string(owner.status().message()),
            absl::StrCat("data directory ", dir, " is being read by another process"));
}

TEST(CondVarTest, AWaitWithoutLimitEndsWithTheSignal) {
  Mutex mu;
  CondVar changed;

  // The signal cannot come before the wait has released the lock.
  std::thread signaller;
  bool signalled = false;
  {
    MutexLock lock(&mu);
    signaller = std::thread([&] {
      MutexLock lock(&mu);
      changed.NotifyAll();
    });
    signalled = changed.WaitFor(&mu, absl::InfiniteDuration());
  }
  signaller.join();

  EXPECT_TRUE(signalled);
}

TEST(FailpointTest, FiresAtTheNthHitAndOnce) {
  if (!kHasFailpoints) GTEST_SKIP() << "this build has no failpoints";

  ASSERT_TRUE(ArmFailpoint("test.point", "error", 2).ok());
  EXPECT_TRUE(HitFailpoint("test.point").ok());
  EXPECT_FALSE(HitFailpoint("test.point").ok());
  EXPECT_TRUE(HitFailpoint("test.point").ok());
}

TEST(FailpointDeathTest, AnUnknownActionInTheEnvironmentIsRefused) {
  if (!kHasFailpoints) GTEST_SKIP() << "this build has no failpoints";

  // The environment is read at the first hit, so the statement runs in a process of its own.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        setenv("SLUICE_FAILPOINTS", "test.point=kil", 1);
        (void)HitFailpoint("test.point");
      },
      "failpoint action \"kil\" is none of kill, stop, hang, error");
}

}  // namespace
}  // namespace sluice
