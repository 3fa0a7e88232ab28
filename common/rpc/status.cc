#include "common/rpc/status.h"

#include <grpcpp/support/status.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/rpc/convert.h"
#include "sluice/rpc/v1/error_details.pb.h"

namespace sluice::rpc {
namespace {
constexpr char kDomain[] = "sluice";
constexpr char kCatalogue[] = "SLUICE-";  // All numbers of errors begin so.
// Longest message, in bytes; a field of the details may have half of it. All metadata of a call
// together is limited to 16 KiB.
constexpr size_t kMaxMessageBytes = 4096;

// Makes text valid and at most `limit` bytes long. An error may quote any bytes, and a text that is
// not UTF-8 would make the peer refuse all details, the reason included.
std::string ToValidText(absl::string_view text, size_t limit) {
  return std::string(Utf8Prefix(Utf8Lossy(text), limit));
}

// Moves what ToGrpcStatusInText() put in front of a message into the detail. Any other message
// stays as it is.
void TakeDetailFromText(std::string* message, ErrorDetail* detail) {
  const std::vector<std::string> parts = absl::StrSplit(*message, absl::MaxSplits(": ", 1));
  const std::vector<std::string> front = absl::StrSplit(parts[0], ' ');
  if (parts.size() != 2 || front.size() != 2 || !absl::StartsWith(front[0], kCatalogue)) return;
  detail->catalogue = front[0];
  detail->reason = front[1];
  *message = parts[1];
}
}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message = ToValidText(status.message(), kMaxMessageBytes);
  const ErrorDetail detail = DetailOf(status);
  if (detail == ErrorDetail()) return grpc::Status(code, message);

  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  google::rpc::ErrorInfo info;
  info.set_reason(ToValidText(detail.reason, kMaxMessageBytes / 2));
  info.set_domain(kDomain);

  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) (*info.mutable_metadata())[key] = ToValidText(value, kMaxMessageBytes / 2);
  };
  add("catalogue", detail.catalogue);
  add("hint", detail.hint);
  add("current", detail.current);
  details.add_details()->PackFrom(info);

  if (detail.retry_after > absl::ZeroDuration()) {
    google::rpc::RetryInfo retry;
    *retry.mutable_retry_delay() = ToProto(detail.retry_after);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, message, details.SerializeAsString());
}

grpc::Status ToGrpcStatusInText(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const ErrorDetail detail = DetailOf(status);
  SLUICE_CHECK(absl::StartsWith(detail.catalogue, kCatalogue) && !detail.reason.empty());
  return grpc::Status(
      static_cast<grpc::StatusCode>(status.code()),
      ToValidText(absl::StrCat(detail.catalogue, " ", detail.reason, ": ", status.message()),
                  kMaxMessageBytes));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  ErrorDetail detail;
  google::rpc::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& any : details.details()) {
      google::rpc::ErrorInfo info;
      google::rpc::RetryInfo retry;
      if (any.UnpackTo(&info) && info.domain() == kDomain) {
        const auto get = [&](const char* key) {
          const auto found = info.metadata().find(key);
          return found == info.metadata().end() ? std::string() : found->second;
        };
        detail.reason = info.reason();
        detail.catalogue = get("catalogue");
        detail.hint = get("hint");
        detail.current = get("current");
      } else if (any.UnpackTo(&retry)) {
        detail.retry_after = FromProto(retry.retry_delay());
      }
    }
  }

  std::string message = Utf8Lossy(status.error_message());  // gRPC carries any bytes here.
  if (status.error_details().empty()) TakeDetailFromText(&message, &detail);
  if (detail == ErrorDetail()) return absl::Status(code, message);
  return ErrorWith(code, detail, message);
}

}  // namespace sluice::rpc
