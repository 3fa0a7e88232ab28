#include "common/rpc/credentials.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/access.h"

namespace sluice::rpc {
namespace {

std::shared_ptr<grpc::experimental::CertificateProviderInterface> WatchFiles(
    const std::string& dir, absl::Duration period) {
  const auto path = [&](const char* name) { return absl::StrCat(dir, "/", name); };
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      path(pki::kKeyFile), path(pki::kCertificateFile), path(pki::kAuthorityFile),
      static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(period))));
}

std::string NamesOf(absl::Span<const Role> roles) {
  return absl::StrJoin(roles, ", ",
                       [](std::string* out, Role role) { absl::StrAppend(out, RoleName(role)); });
}

// Accepts a server if its certificate, which gRPC has found to be signed by the authority, carries
// an identity of the domain with one of the roles. The host's name is not compared: addresses come
// from the controller, and a certificate names a daemon wherever it runs.
class PeerVerifier : public grpc::experimental::ExternalCertificateVerifier {
 public:
  PeerVerifier(std::string domain, std::vector<Role> roles)
      : domain_(std::move(domain)), roles_(std::move(roles)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>, grpc::Status* status) override {
    const std::string refusal = FindRefusal(request->uri_names());
    if (!refusal.empty()) *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, refusal);
    return true;  // The check is done.
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  // Why the server with these URIs is not accepted; empty if it is.
  std::string FindRefusal(const std::vector<grpc::string_ref>& uris) const {
    if (uris.size() != 1)
      return absl::StrCat("its certificate has ", uris.size(), " URIs; wanted: one identity");
    const absl::StatusOr<Identity> peer =
        ParseIdentity(absl::string_view(uris[0].data(), uris[0].size()), domain_);
    if (!peer.ok()) return std::string(peer.status().message());
    if (absl::c_linear_search(roles_, peer->role)) return "";
    return absl::StrCat("it is ", DescribeIdentity(*peer), "; wanted: ", NamesOf(roles_));
  }

  const std::string domain_;
  const std::vector<Role> roles_;
};

struct Process {
  Mutex mu;
  std::shared_ptr<const Credentials> credentials ABSL_GUARDED_BY(mu);
};
Process& ThisProcess() {
  static Process* const process = new Process;  // Never destroyed: threads may still make channels.
  return *process;
}

}  // namespace

Credentials::Credentials(std::string dir, absl::Duration reread, Identity identity,
                         std::string domain)
    : dir_(std::move(dir)),
      reread_(reread),
      identity_(std::move(identity)),
      domain_(std::move(domain)) {}

absl::StatusOr<std::shared_ptr<const Credentials>> Credentials::Load(const std::string& dir,
                                                                     absl::Duration reread) {
  SLUICE_ASSIGN_OR_RETURN(const pki::TlsFiles files, pki::ReadTlsDir(dir, absl::Now()));
  SLUICE_ASSIGN_OR_RETURN(const pki::Certificate certificate,
                          pki::ParseCertificate(files.pair.certificate));
  const std::string& uri = certificate.subject.uri;
  const auto read = [&]() -> absl::StatusOr<std::shared_ptr<const Credentials>> {
    SLUICE_ASSIGN_OR_RETURN(std::string domain, DomainOf(uri));
    SLUICE_ASSIGN_OR_RETURN(Identity identity, ParseIdentity(uri, domain));
    return std::shared_ptr<const Credentials>(
        new Credentials(dir, reread, std::move(identity), std::move(domain)));
  };
  absl::StatusOr<std::shared_ptr<const Credentials>> credentials = read();
  if (!credentials.ok())
    return Annotate(credentials.status(), absl::StrCat("the certificate of ", dir));
  return credentials;
}

absl::Time Credentials::ReadExpiry() const {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(dir_, "/", pki::kCertificateFile));
  if (!text.ok()) return absl::InfinitePast();
  const absl::StatusOr<pki::Certificate> certificate = pki::ParseCertificate(*text);
  return certificate.ok() ? certificate->validity.until : absl::InfinitePast();
}

std::shared_ptr<grpc::ServerCredentials> Credentials::MakeServerCredentials(
    metrics::Registry* metrics) const {
  grpc::experimental::TlsServerCredentialsOptions options(WatchFiles(dir_, reread_));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(MakeAccessCheck(domain_, metrics));
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials::MakeChannelCredentials(
    absl::Span<const Role> peers) const {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(WatchFiles(dir_, reread_));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(
      grpc::experimental::ExternalCertificateVerifier::Create<PeerVerifier>(
          domain_, std::vector<Role>(peers.begin(), peers.end())));
  return grpc::experimental::TlsCredentials(options);
}

void SetProcessCredentials(std::shared_ptr<const Credentials> credentials) {
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  process.credentials = std::move(credentials);
}

std::shared_ptr<const Credentials> ProcessCredentials() {
  Process& process = ThisProcess();
  MutexLock lock(&process.mu);
  return process.credentials;
}

}  // namespace sluice::rpc
