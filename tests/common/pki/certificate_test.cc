#include "common/pki/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice::pki {
namespace {
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
const Validity kTenYears = {kNow, kNow + absl::Hours(24 * 3650)};
const Validity kMonth = {kNow, kNow + absl::Hours(24 * 30)};

KeyPair Authority(const std::string& name = "test authority") {
  return *MakeAuthority({.name = name, .uri = "spiffe://test"}, kTenYears);
}
KeyPair Issue(const KeyPair& authority, const Validity& validity = kMonth) {
  return *IssueCertificate(
      authority, {.name = "queue-0", .uri = "spiffe://test/sluice/queue/queue-0"}, validity);
}
std::string Reason(const KeyPair& pair, const KeyPair& authority, absl::Time now) {
  return ReasonOf(CheckKeyPair(pair, authority.certificate, now));
}

TEST(CertificateTest, SaysWhomItNamesAndHowLong) {
  const KeyPair pair =
      *IssueCertificate(Authority(),
                        {.name = "queue-0",
                         .uri = "spiffe://test/sluice/queue/queue-0",
                         .hosts = {"localhost", "queue-0.sluice.svc", "127.0.0.1", "::1"}},
                        kMonth);

  const Certificate read = *ParseCertificate(pair.certificate);

  EXPECT_EQ(read.subject.name, "queue-0");
  EXPECT_EQ(read.subject.uri, "spiffe://test/sluice/queue/queue-0");
  EXPECT_THAT(read.subject.hosts,
              ElementsAre("localhost", "queue-0.sluice.svc", "127.0.0.1", "::1"));
  EXPECT_EQ(read.validity.from, kMonth.from);
  EXPECT_EQ(read.validity.until, kMonth.until);
  EXPECT_FALSE(read.is_authority);
  EXPECT_EQ(read.serial.size(), 32u);
  EXPECT_TRUE(ParseCertificate(Authority().certificate)->is_authority);
}

TEST(CertificateTest, APairIsTrustedByItsAuthorityWhileItIsValid) {
  const KeyPair authority = Authority();
  const KeyPair pair = Issue(authority);

  EXPECT_EQ(Reason(pair, authority, kNow + absl::Hours(1)), "");
  EXPECT_EQ(Reason(pair, authority, kMonth.until + absl::Seconds(1)), "EXPIRED");
  EXPECT_EQ(Reason(pair, authority, kNow - absl::Hours(1)), "NOT_YET_VALID");
}

TEST(CertificateTest, AnotherAuthorityOfTheSameNameIsNotBelieved) {
  const KeyPair authority = Authority(), impostor = Authority();

  EXPECT_EQ(Reason(Issue(impostor), authority, kNow), "UNTRUSTED");
  // Both are trusted while an authority is replaced.
  const std::string both = absl::StrCat(authority.certificate, impostor.certificate);
  EXPECT_TRUE(CheckKeyPair(Issue(impostor), both, kNow).ok());
  EXPECT_TRUE(CheckKeyPair(Issue(authority), both, kNow).ok());
}

TEST(CertificateTest, AKeyOfAnotherCertificateIsAMismatch) {
  const KeyPair authority = Authority();
  const KeyPair mixed = {Issue(authority).certificate, Issue(authority).key};

  EXPECT_EQ(Reason(mixed, authority, kNow), "KEY_MISMATCH");
}

TEST(CertificateTest, OnlyAnAuthoritySignsAndNotBeyondItsOwnEnd) {
  const KeyPair authority = Authority();
  const KeyPair daemon = Issue(authority);
  const Subject subject = {.name = "x", .uri = "spiffe://test/sluice/queue/x"};

  EXPECT_EQ(IssueCertificate(daemon, subject, kMonth).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(IssueCertificate({authority.certificate, daemon.key}, subject, kMonth).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(IssueCertificate(authority, subject, {kNow, kTenYears.until + absl::Hours(1)})
                  .status()
                  .message(),
              HasSubstr("but its authority is only until"));
}

TEST(CertificateTest, FractionsOfASecondDoNotReachBeyondTheAuthoritysEnd) {
  const Validity validity = {kNow, kNow + absl::Milliseconds(1500)};
  const KeyPair authority = *MakeAuthority({.name = "short", .uri = "spiffe://test"}, validity);
  EXPECT_TRUE(ParseCertificate(Issue(authority, validity).certificate).ok());
}

TEST(CertificateTest, NamesThatACertificateCannotCarryAreRefused) {
  const KeyPair authority = Authority();
  const auto code = [&](const Subject& subject) {
    return IssueCertificate(authority, subject, kMonth).status().code();
  };
  const std::string uri = "spiffe://test/sluice/queue/x";

  // A comma would add a second alternative name, such as that of another daemon.
  EXPECT_EQ(code({.name = "x", .uri = absl::StrCat(uri, ",URI:spiffe://test/sluice/trainer/t")}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = "", .uri = uri}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = std::string(65, 'x'), .uri = uri}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .uri = "queue-0"}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = "x", .uri = uri, .hosts = {"a,URI:b"}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.name = std::string(64, 'x'), .uri = uri, .hosts = {"*.a"}}),
            absl::StatusCode::kOk);
}

TEST(CertificateTest, TextsThatAreCutOrForeignAreRefusedWithoutACrash) {
  const KeyPair authority = Authority();
  const KeyPair pair = Issue(authority);

  for (size_t size = 0; size + 2 < pair.certificate.size(); ++size) {
    const std::string cut = pair.certificate.substr(0, size);
    EXPECT_EQ(ReasonOf(ParseCertificate(cut).status()), "BAD_PEM") << size;
    EXPECT_EQ(Reason({cut, pair.key}, authority, kNow), "BAD_PEM") << size;
  }
  const std::string& key = pair.key.Reveal();
  for (size_t size = 0; size + 2 < key.size(); ++size)
    EXPECT_EQ(Reason({pair.certificate, Secret(key.substr(0, size))}, authority, kNow), "BAD_PEM");
  // A second certificate that is cut is not dropped in silence.
  EXPECT_EQ(Reason({absl::StrCat(pair.certificate, authority.certificate.substr(0, 200)), pair.key},
                   authority, kNow),
            "BAD_PEM");
}

}  // namespace
}  // namespace sluice::pki
