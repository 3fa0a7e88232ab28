// Checks of a TLS folder. Each looks at one thing, so that one fault makes one check fail.

#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/identity.h"
#include "tools/sluice/doctor/checks.h"

namespace sluice::cli {
namespace {

constexpr char kNoTlsDir[] = "give --tls DIR or set SLUICE_TLS";
constexpr absl::Duration kDay = absl::Hours(24);

std::string TlsPath(const DoctorInputs& in, const char* name) {
  return absl::StrCat(in.tls_dir, "/", name);
}

Finding CheckTlsFiles(const DoctorInputs& in) {
  if (in.tls_dir.empty()) return Skip(kNoTlsDir);
  for (const char* name : {pki::kCertificateFile, pki::kKeyFile, pki::kAuthorityFile}) {
    const absl::Status status = ReadFile(TlsPath(in, name), 1 << 20).status();
    if (!status.ok())
      return Fail(
          std::string(status.message()),
          "make the folder with `sluice pki issue`, or give this user the right to read it");
  }
  return Pass(absl::StrCat(in.tls_dir, " has tls.crt, tls.key and ca.crt"));
}

// The certificate, or the finding of a check that cannot go on without it.
absl::StatusOr<pki::Certificate> ReadCertificate(const DoctorInputs& in) {
  SLUICE_ASSIGN_OR_RETURN(const std::string pem,
                          ReadFile(TlsPath(in, pki::kCertificateFile), 1 << 20));
  return pki::ParseCertificate(pem);
}

Finding CheckKeyMode(const DoctorInputs& in) {
  if (in.tls_dir.empty()) return Skip(kNoTlsDir);
  const std::string path = TlsPath(in, pki::kKeyFile);
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return Skip("see pki.files");
  const std::string found = absl::StrFormat("%s has the mode %03o", path, info.st_mode & 0777);
  if ((info.st_mode & S_IRWXO) == 0) return Pass(found);
  return Fail(found + ": every user of this host may read the key",
              absl::StrCat("`chmod 600 ", path, "`; issue a new certificate if others had access"));
}

Finding CheckChain(const DoctorInputs& in) {
  if (in.tls_dir.empty()) return Skip(kNoTlsDir);
  absl::StatusOr<std::string> crt = ReadFile(TlsPath(in, pki::kCertificateFile), 1 << 20),
                              key = ReadFile(TlsPath(in, pki::kKeyFile), 1 << 20),
                              authority = ReadFile(TlsPath(in, pki::kAuthorityFile), 1 << 20);
  if (!crt.ok() || !key.ok() || !authority.ok()) return Skip("see pki.files");
  const pki::KeyPair pair{.certificate = *std::move(crt), .key = Secret(*std::move(key))};
  const absl::StatusOr<pki::Certificate> certificate = pki::ParseCertificate(pair.certificate);
  absl::Status status = certificate.status();
  // In the middle of its life: its end is what pki.expiry looks at.
  if (status.ok()) {
    const pki::Validity& validity = certificate->validity;
    status =
        pki::CheckKeyPair(pair, *authority, validity.from + (validity.until - validity.from) / 2);
  }
  if (status.ok()) return Pass("the key is that of the certificate, which ca.crt has signed");
  return Fail(
      absl::StrCat(in.tls_dir, ": ", status.message()),
      "issue it again with `sluice pki issue`, with the authority whose ca.crt all hosts of "
      "the fleet have");
}

Finding CheckExpiry(const DoctorInputs& in) {
  if (in.tls_dir.empty()) return Skip(kNoTlsDir);
  const absl::StatusOr<pki::Certificate> certificate = ReadCertificate(in);
  if (!certificate.ok()) return Skip("see pki.files and pki.chain");
  const std::string path = TlsPath(in, pki::kCertificateFile);
  const auto day = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
  };
  const std::string fix =
      absl::StrCat("issue a new one into ", in.tls_dir,
                   " with `sluice pki issue`; running daemons take it up by themselves");

  const pki::Validity& validity = certificate->validity;
  if (in.now < validity.from)
    return Fail(absl::StrCat(path, " is valid only from ", day(validity.from)),
                "set the clock of this host, or of the host that issued the certificate");
  if (in.now > validity.until)
    return Fail(absl::StrCat(path, " ended on ", day(validity.until)), fix);
  const double days = absl::FDivDuration(validity.until - in.now, kDay);
  const std::string found = absl::StrFormat("%s is valid until %s, %.0f days", path,
                                            day(validity.until), std::floor(days));
  return days < 14 ? Warn(found, fix) : Pass(found);
}

Finding CheckIdentity(const DoctorInputs& in) {
  if (in.tls_dir.empty()) return Skip(kNoTlsDir);
  const absl::StatusOr<pki::Certificate> certificate = ReadCertificate(in);
  if (!certificate.ok()) return Skip("see pki.files and pki.chain");
  const std::string& uri = certificate->subject.uri;
  const absl::StatusOr<std::string> domain = rpc::DomainOf(uri);
  absl::Status status = domain.status();
  if (status.ok()) status = rpc::ParseIdentity(uri, *domain).status();
  if (status.ok()) return Pass(uri);
  return Fail(absl::StrCat(TlsPath(in, pki::kCertificateFile), ": ", status.message()),
              "issue it with `sluice pki issue ROLE NAME`, or with the URI "
              "spiffe://DOMAIN/sluice/ROLE/NAME");
}

}  // namespace

std::vector<DoctorCheck> PkiChecks() {
  return {{"pki", "files", "the TLS folder has its three files", CheckTlsFiles},
          {"pki", "key_mode", "only the owner may read the key", CheckKeyMode},
          {"pki", "chain", "the authority has signed the certificate of this key", CheckChain},
          {"pki", "expiry", "the certificate is valid for some days more", CheckExpiry},
          {"pki", "identity", "the certificate names a role and a name", CheckIdentity}};
}

}  // namespace sluice::cli
