#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/secret.h"

// X.509 certificates with ECDSA keys on the curve P-256. All texts are PEM.
namespace sluice::pki {

// A certificate and its private key.
struct KeyPair {
  std::string certificate;
  Secret key;
};

// Whom a certificate names.
struct Subject {
  std::string name;  // The common name, for people; 1 to 64 bytes.
  std::string uri;   // The identity: a URI among the subject's alternative names.
  std::vector<std::string> hosts = {};  // DNS names and IP addresses, for clients that check them.
};

// From when until when a certificate is valid.
struct Validity {
  absl::Time from;
  absl::Time until;
};

// Makes a new certificate authority, whose certificate is signed by itself. It can sign
// certificates of daemons and people, but not those of other authorities.
// INVALID_ARGUMENT: a name is empty or too long, a host is neither a DNS name nor an IP address, or
// the validity ends before it begins.
absl::StatusOr<KeyPair> MakeAuthority(const Subject& subject, const Validity& validity);

// Makes a key and a certificate for it, signed by `authority`. It serves for both ends of a
// connection.
// INVALID_ARGUMENT: as MakeAuthority(); or `authority` is not a certificate of an authority with
// its key; or the validity ends after that of the authority.
absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority, const Subject& subject,
                                         const Validity& validity);

// What a certificate says.
struct Certificate {
  Subject subject;
  Validity validity;
  bool is_authority = false;
  std::string serial;  // Hex digits.
};

// Reads the first certificate of a PEM text.
// INVALID_ARGUMENT: there is none, or it cannot be read.
absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem);

// OK: `pair.key` is the key of `pair.certificate`, which `authority` has signed (or one of several
// authorities in this text), and which is valid at `now`. Certificates that follow the first one in
// `pair.certificate` are taken for intermediate authorities.
// INVALID_ARGUMENT BAD_PEM: a text cannot be read.
// FAILED_PRECONDITION KEY_MISMATCH: the key belongs to another certificate.
// FAILED_PRECONDITION UNTRUSTED: none of the authorities has signed it.
// FAILED_PRECONDITION EXPIRED, NOT_YET_VALID: one of the certificates is not valid at `now`.
absl::Status CheckKeyPair(const KeyPair& pair, absl::string_view authority, absl::Time now);

}  // namespace sluice::pki
