#include "tools/sluice/fleet_tls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/credentials.h"

namespace sluice::cli {
namespace {

constexpr char kDomain[] = "local";
// Longer than any fleet of one machine runs.
constexpr absl::Duration kLifetime = absl::Hours(24 * 3650);
constexpr absl::Duration kClockSlack = absl::Minutes(5);

}  // namespace

std::string FleetTlsDir(const std::string& data_dir, const std::string& name) {
  return absl::StrCat(data_dir, "/tls/", name);
}

absl::Status IssueFleetCertificates(const std::string& data_dir,
                                    const std::vector<DaemonSpec>& daemons) {
  const absl::Time now = absl::Now();
  const pki::Validity validity = {now - kClockSlack, now + kLifetime};
  SLUICE_ASSIGN_OR_RETURN(
      const pki::KeyPair authority,
      pki::MakeAuthority(
          {.name = "fleet of one machine", .uri = absl::StrCat("spiffe://", kDomain)}, validity));
  const auto issue = [&](rpc::Role role, const std::string& name) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(
        pki::KeyPair pair,
        pki::IssueCertificate(
            authority, {.name = name, .uri = rpc::IdentityUri(kDomain, {role, name})}, validity));
    return pki::WriteTlsDir(FleetTlsDir(data_dir, name), {std::move(pair), authority.certificate});
  };
  for (const DaemonSpec& daemon : daemons)
    SLUICE_RETURN_IF_ERROR(issue(rpc::ParseRole(daemon.role), daemon.name));
  return issue(rpc::Role::kOperator, kFleetOperator);
}

absl::Status BecomeOperator(const std::string& data_dir) {
  const std::string dir = FleetTlsDir(data_dir, kFleetOperator);
  if (!PathExists(dir)) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Credentials> credentials,
                          rpc::Credentials::Load(dir));
  rpc::SetProcessCredentials(std::move(credentials));
  return absl::OkStatus();
}

}  // namespace sluice::cli
