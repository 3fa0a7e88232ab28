#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/pki/certificate.h"

namespace sluice::pki {

// A folder with what a process needs for TLS, under the names that a Kubernetes Secret of type
// kubernetes.io/tls and cert-manager use.
inline constexpr char kCertificateFile[] = "tls.crt";  // Its certificate, then intermediate ones.
inline constexpr char kKeyFile[] = "tls.key";          // The key of its certificate.
inline constexpr char kAuthorityFile[] = "ca.crt";     // The authorities that it trusts.
// The key of the authority. It lies only in the folder of the authority itself.
inline constexpr char kAuthorityKeyFile[] = "ca.key";

struct TlsFiles {
  KeyPair pair;
  std::string authority;
};

// Reads the three files and checks them: CheckKeyPair() at `now`, and that not everyone on the host
// may read the key.
// NOT_FOUND: a file is missing; the message names it.
// FAILED_PRECONDITION KEY_MODE: other users may read the key.
// Else the errors of CheckKeyPair(). All messages name the folder.
absl::StatusOr<TlsFiles> ReadTlsDir(const std::string& dir, absl::Time now);

// Writes the three files, and creates the folder. Former ones are replaced all at once, and a
// process that uses the folder takes the new ones up by itself. Only the owner may read the key.
absl::Status WriteTlsDir(const std::string& dir, const TlsFiles& files);

}  // namespace sluice::pki
