#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/rpc/identity.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc
namespace sluice::metrics {
class Registry;
}  // namespace sluice::metrics

namespace sluice::rpc {

// How a process proves who it is, and whom it believes: the certificate, key and authorities of a
// TLS folder (common/pki/tls_dir.h). The folder is read again every kRereadPeriod, so new files are
// used for new connections while calls over old ones go on.
//
// Thread-safe.
class Credentials {
 public:
  static constexpr absl::Duration kRereadPeriod = absl::Seconds(10);

  // FAILED_PRECONDITION, NOT_FOUND, INVALID_ARGUMENT: the folder cannot be used, as
  // pki::ReadTlsDir() says.
  // UNAUTHENTICATED: the certificate carries no identity (ParseIdentity()).
  static absl::StatusOr<std::shared_ptr<const Credentials>> Load(
      const std::string& dir, absl::Duration reread = kRereadPeriod);

  const Identity& identity() const { return identity_; }
  const std::string& domain() const { return domain_; }

  // When the certificate that lies in the folder now ends. InfinitePast() if it cannot be read.
  absl::Time ReadExpiry() const;

  // For a server that admits only callers of the same domain, and each only to the calls that the
  // proto files allow to its role (access.h). `metrics` may be null; it outlives the server and
  // receives sluice_rpc_denied_total.
  std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(metrics::Registry* metrics) const;
  // For a channel that accepts only a server of the same domain, with one of the roles `peers`.
  std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(
      absl::Span<const Role> peers) const;

 private:
  Credentials(std::string dir, absl::Duration reread, Identity identity, std::string domain);

  const std::string dir_;
  const absl::Duration reread_;
  const Identity identity_;
  const std::string domain_;
};

// The credentials of this process, which servers and channels use unless they are given others.
// Null until they are set: then servers and channels work without TLS, on loopback only. Set them
// before the first server or channel is made.
void SetProcessCredentials(std::shared_ptr<const Credentials> credentials);
std::shared_ptr<const Credentials> ProcessCredentials();

}  // namespace sluice::rpc
