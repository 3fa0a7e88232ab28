#include "common/rpc/address.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/loopback.h"
#include "common/base/status.h"

namespace sluice::rpc {
namespace {

// The longest DNS name.
constexpr size_t kMaxHostBytes = 253;

bool IsHost(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) {
    in6_addr bytes;
    return absl::ConsumeSuffix(&host, "]") &&
           inet_pton(AF_INET6, std::string(host).c_str(), &bytes) == 1;
  }
  constexpr absl::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return !host.empty() && host.size() <= kMaxHostBytes &&
         host.find_first_not_of(kAllowed) == absl::string_view::npos;
}

}  // namespace

absl::Status CheckAddress(absl::string_view address, bool tls) {
  const size_t colon = address.rfind(':');
  const absl::string_view host = address.substr(0, colon);
  int port = 0;
  if (colon == absl::string_view::npos || !IsHost(host) ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 || port > 65535) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
                 absl::StrCat("'", address,
                              "' is not an address; wanted: HOST:PORT, such as 127.0.0.1:7000"));
  }
  if (tls || IsLoopback(host)) return absl::OkStatus();
  return ErrorWith(
      absl::StatusCode::kInvalidArgument,
      {.reason = "NOT_LOOPBACK",
       .catalogue = "SLUICE-AUTH-0007",
       .hint = "give --tls DIR, a folder of `sluice pki issue`, or use 127.0.0.1"},
      absl::StrCat("address '", address, "' is not on loopback; TLS is needed off loopback"));
}

bool IsOnAllInterfaces(absl::string_view address) {
  return absl::StartsWith(address, "0.0.0.0:") || absl::StartsWith(address, "[::]:");
}

absl::StatusOr<std::string> AdvertisedAddress(absl::string_view advertise,
                                              absl::string_view listening) {
  const size_t colon = listening.rfind(':');
  SLUICE_CHECK(colon != absl::string_view::npos);
  if (advertise.empty()) {
    if (!IsOnAllInterfaces(listening)) return std::string(listening);
    return ErrorWith(
        absl::StatusCode::kInvalidArgument,
        {.reason = "NO_ADVERTISED_ADDRESS",
         .catalogue = "SLUICE-RPC-0003",
         .hint = "give --advertise HOST[:PORT], at which other hosts reach this daemon, "
                 "or listen on one interface"},
        absl::StrCat("the daemon listens on ", listening,
                     ", which is no address that others can call"));
  }

  const std::string address =
      IsHost(advertise) ? absl::StrCat(advertise, listening.substr(colon)) : std::string(advertise);
  SLUICE_RETURN_IF_ERROR(Annotate(CheckAddress(address, /*tls=*/true), "--advertise"));
  if (IsOnAllInterfaces(address)) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
                 absl::StrCat("--advertise ", advertise,
                              " means all interfaces; wanted: HOST or HOST:PORT, at which other "
                              "hosts reach this daemon"));
  }
  return address;
}

}  // namespace sluice::rpc
