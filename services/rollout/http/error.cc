#include "services/rollout/http/error.h"

#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace sluice::rollout::http {
namespace {

constexpr char kPayload[] = "sluice/http";  // "STATUS\nCODE\nPARAM\nALLOW"

absl::StatusCode CodeOf(int status) {
  switch (status) {
    case 401: return absl::StatusCode::kUnauthenticated;
    case 404: return absl::StatusCode::kNotFound;
    case 408: return absl::StatusCode::kDeadlineExceeded;
    case 429: return absl::StatusCode::kResourceExhausted;
    case 500: return absl::StatusCode::kInternal;
    case 503: return absl::StatusCode::kUnavailable;
    default: return absl::StatusCode::kInvalidArgument;
  }
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented: return 400;
    case absl::StatusCode::kUnauthenticated: return 401;
    case absl::StatusCode::kNotFound: return 404;
    case absl::StatusCode::kResourceExhausted: return 429;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable: return 503;
    default: return 500;
  }
}

const char* TypeOf(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

absl::Status Refuse(int status, absl::string_view code, absl::string_view param,
                    absl::string_view message) {
  absl::Status refusal(CodeOf(status), message);
  refusal.SetPayload(kPayload, absl::Cord(absl::StrCat(status, "\n", code, "\n", param, "\n")));
  return refusal;
}

absl::Status RefuseMethod(absl::string_view allow, absl::string_view message) {
  absl::Status refusal(CodeOf(405), message);
  refusal.SetPayload(kPayload, absl::Cord(absl::StrCat("405\nmethod_not_allowed\n\n", allow)));
  return refusal;
}

ApiError ApiErrorOf(const absl::Status& status) {
  ApiError error;
  error.status = HttpStatusOf(status.code());
  error.message = std::string(status.message());
  if (const auto payload = status.GetPayload(kPayload)) {
    const std::vector<std::string> parts = absl::StrSplit(std::string(*payload), '\n');
    (void)absl::SimpleAtoi(parts[0], &error.status);
    error.code = parts[1];
    error.param = parts[2];
    error.allow = parts[3];
  }
  if (error.status == 429) error.retry_after = 1;
  if (error.status == 503) error.retry_after = 2;
  return error;
}

std::string ErrorJson(const ApiError& error) {
  using Json = nlohmann::ordered_json;
  const auto text = [](const std::string& value) {
    return value.empty() ? Json(nullptr) : Json(value);
  };
  const Json json = {{"error",
                      {{"message", error.message},
                       {"type", TypeOf(error.status)},
                       {"param", text(error.param)},
                       {"code", text(error.code)}}}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sluice::rollout::http
