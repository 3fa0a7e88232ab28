#include "common/run_code/protocol.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/json_depth.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice::run_code {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 16;
constexpr double kMostSeconds = 600;
constexpr size_t kQuoted = 200;  // Bytes of a foreign text that an error quotes.

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<Json> ParseObject(absl::string_view text) {
  Json json;
  if (JsonDepth(text) <= kMaxDepth) json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(
      absl::StrCat("this is no JSON object: ", Utf8Prefix(Utf8Lossy(text), kQuoted)));
}

// Null if it is not there.
const Json* Find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::Status Wrong(const char* key, const Json& value, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is ", JsonExcerpt(value), "; wanted: ", wanted));
}

// Reads a text, if it is there.
absl::Status ReadText(const Json& object, const char* key, std::string* text) {
  const Json* const value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return Wrong(key, *value, "a text");
  *text = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadSeconds(const Json& object, const char* key, absl::Duration* time) {
  const Json* const value = Find(object, key);
  if (value == nullptr) return absl::OkStatus();
  const double seconds = value->is_number() ? value->get<double>() : 0;
  if (!(seconds > 0 && seconds <= kMostSeconds)) return Wrong(key, *value, "seconds, up to 600");
  *time = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::Status ReadMemory(const Json& object, Request* request) {
  const Json* const value = Find(object, "memory_limit_MB");
  if (value == nullptr || *value == -1) return absl::OkStatus();
  if (!value->is_number_unsigned() || *value < 16 || *value > (1 << 20))
    return Wrong("memory_limit_MB", *value, "MiB, from 16 on, or -1");
  request->memory_bytes = value->get<uint64_t>() << 20;
  return absl::OkStatus();
}

// Files and packages would be more than one program on one input.
absl::Status RefuseOthers(const Json& object) {
  for (const char* const key : {"files", "fetch_files", "args"}) {
    const Json* const value = Find(object, key);
    if (value != nullptr && !value->empty())
      return Wrong(key, *value, "nothing; this server runs one program on its standard input");
  }
  return absl::OkStatus();
}

Json ToObject(const Ran& ran) {
  Json object = {{"status", ran.timed_out ? "TimeLimitExceeded" : "Finished"},
                 {"execution_time", absl::ToDoubleSeconds(ran.time)},
                 {"return_code", nullptr},
                 {"stdout", ran.out},
                 {"stderr", ran.err}};
  if (!ran.timed_out) object["return_code"] = ran.code;
  return object;
}

bool Failed(const std::optional<Ran>& ran) {
  return ran.has_value() && (ran->timed_out || ran->code != 0);
}

absl::StatusOr<std::optional<Ran>> ReadRan(const Json& object, const char* key) {
  const Json* const value = Find(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) return Wrong(key, *value, "an object");
  Ran ran;
  std::string status;
  SLUICE_RETURN_IF_ERROR(ReadText(*value, "status", &status));
  SLUICE_RETURN_IF_ERROR(ReadText(*value, "stdout", &ran.out));
  SLUICE_RETURN_IF_ERROR(ReadText(*value, "stderr", &ran.err));
  if (const Json* const time = Find(*value, "execution_time");
      time != nullptr && time->is_number() && std::isfinite(time->get<double>()))
    ran.time = absl::Seconds(time->get<double>());

  ran.timed_out = status == "TimeLimitExceeded";
  if (ran.timed_out) return ran;
  if (status != "Finished")
    return absl::InvalidArgumentError(absl::StrCat(key, " has the status \"",
                                                   Utf8Prefix(status, kQuoted),
                                                   "\": ", Utf8Prefix(ran.err, kQuoted)));
  const Json* const code = Find(*value, "return_code");
  if (code == nullptr || !code->is_number_integer())
    return absl::InvalidArgumentError(absl::StrCat(key, " has no return_code"));
  ran.code = code->get<int64_t>();
  return ran;
}

absl::StatusOr<Reply> ReadReply(absl::string_view json) {
  SLUICE_ASSIGN_OR_RETURN(const Json object, ParseObject(json));
  std::string status, message;
  SLUICE_RETURN_IF_ERROR(ReadText(object, "status", &status));
  SLUICE_RETURN_IF_ERROR(ReadText(object, "message", &message));
  if (status != "Success" && status != "Failed")
    return absl::InvalidArgumentError(absl::StrCat("its status is \"", Utf8Prefix(status, kQuoted),
                                                   "\": ", Utf8Prefix(message, kQuoted)));
  Reply reply;
  SLUICE_ASSIGN_OR_RETURN(reply.compiled, ReadRan(object, "compile_result"));
  SLUICE_ASSIGN_OR_RETURN(reply.ran, ReadRan(object, "run_result"));
  if (!reply.ran.has_value() && !Failed(reply.compiled))
    return absl::InvalidArgumentError("it has no run_result");
  // A server that contradicts itself has not understood what it ran.
  if ((status == "Success") == (Failed(reply.compiled) || Failed(reply.ran)))
    return absl::InvalidArgumentError(
        absl::StrCat("its status ", status, " contradicts its results"));
  return reply;
}

}  // namespace

std::string ToJson(const Request& request) {
  Json json = {{"language", request.cpp ? "cpp" : "python"},
               {"code", request.code},
               {"stdin", request.input},
               {"compile_timeout", absl::ToDoubleSeconds(request.compile_timeout)},
               {"run_timeout", absl::ToDoubleSeconds(request.run_timeout)}};
  if (request.cpu_timeout != absl::InfiniteDuration())
    json["cpu_timeout"] = absl::ToDoubleSeconds(request.cpu_timeout);
  if (request.memory_bytes.has_value()) json["memory_limit_MB"] = *request.memory_bytes >> 20;
  return Dump(json);
}

absl::StatusOr<Request> ParseRequest(absl::string_view json) {
  SLUICE_ASSIGN_OR_RETURN(const Json object, ParseObject(json));
  Request request;
  std::string language;
  SLUICE_RETURN_IF_ERROR(ReadText(object, "language", &language));
  if (language != "python" && language != "cpp") {
    return absl::InvalidArgumentError(
        absl::StrCat("language is \"", Utf8Prefix(language, kQuoted), "\"; wanted: python or cpp"));
  }
  request.cpp = language == "cpp";
  const Json* const code = Find(object, "code");
  if (code == nullptr) return absl::InvalidArgumentError("there is no code");
  SLUICE_RETURN_IF_ERROR(ReadText(object, "code", &request.code));
  SLUICE_RETURN_IF_ERROR(ReadText(object, "stdin", &request.input));
  SLUICE_RETURN_IF_ERROR(ReadSeconds(object, "compile_timeout", &request.compile_timeout));
  SLUICE_RETURN_IF_ERROR(ReadSeconds(object, "run_timeout", &request.run_timeout));
  SLUICE_RETURN_IF_ERROR(ReadSeconds(object, "cpu_timeout", &request.cpu_timeout));
  SLUICE_RETURN_IF_ERROR(ReadMemory(object, &request));
  SLUICE_RETURN_IF_ERROR(RefuseOthers(object));
  return request;
}

std::string ToJson(const Reply& reply) {
  Json json = {{"status", Failed(reply.compiled) || Failed(reply.ran) ? "Failed" : "Success"},
               {"message", ""},
               {"compile_result", nullptr},
               {"run_result", nullptr},
               {"executor_pod_name", nullptr},
               {"files", Json::object()}};
  if (reply.compiled.has_value()) json["compile_result"] = ToObject(*reply.compiled);
  if (reply.ran.has_value()) json["run_result"] = ToObject(*reply.ran);
  return Dump(json);
}

std::string FailureJson(absl::string_view message) {
  return Dump({{"status", "SandboxError"}, {"message", message}, {"files", Json::object()}});
}

absl::StatusOr<Reply> ParseReply(absl::string_view json) {
  absl::StatusOr<Reply> reply = ReadReply(json);
  if (reply.ok()) return reply;
  return absl::UnavailableError(reply.status().message());
}

}  // namespace sluice::run_code
