#include "tools/sluice/log_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"
#include "common/rpc/convert.h"
#include "sluice/common/v1/common.pb.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice::cli {
namespace {

// Whether a terminal would do something else than show a character.
bool IsControl(uint32_t code_point) {
  const bool control = code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0);
  const bool line = code_point == 0x2028 || code_point == 0x2029;
  const bool direction = code_point == 0x061C || code_point == 0x200E || code_point == 0x200F ||
                         (code_point >= 0x202A && code_point <= 0x202E) ||
                         (code_point >= 0x2066 && code_point <= 0x2069);
  return control || line || direction;
}

const char* LevelText(common::v1::LogLevel level) {
  switch (level) {
    case common::v1::LOG_LEVEL_DEBUG: return "debug";
    case common::v1::LOG_LEVEL_INFO: return "info";
    case common::v1::LOG_LEVEL_WARNING: return "warning";
    case common::v1::LOG_LEVEL_ERROR: return "error";
    default: return "?";
  }
}

// The value of a field, in quotes where it would not be read as one word.
std::string ValueText(const nlohmann::ordered_json& value) {
  const std::string json =
      value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (!value.is_string()) return json;
  const auto& text = value.get_ref<const std::string&>();
  const bool plain = !text.empty() && text.find_first_of(" \"=\\") == text.npos &&
                     json.size() == text.size() + 2;  // Nothing in it is escaped.
  return plain ? text : json;
}

}  // namespace

std::string EscapeControls(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) {
      absl::StrAppend(&out, "\\ufffd");
      text.remove_prefix(1);
      continue;
    }
    const uint32_t code_point = DecodeUtf8(text.data());
    if (IsControl(code_point)) absl::StrAppendFormat(&out, "\\u%04x", code_point);
    else out.append(text.data(), length);
    text.remove_prefix(length);
  }
  return out;
}

std::string LogLineText(const job::v1::DaemonLine& line, absl::TimeZone zone) {
  std::string text = absl::StrFormat(
      "%s %-7s %s", absl::FormatTime("%Y-%m-%d %H:%M:%E3S", rpc::FromProto(line.line().at()), zone),
      LevelText(line.line().level()), line.daemon());

  const auto json = nlohmann::ordered_json::parse(line.line().json(), nullptr, false);
  if (!json.is_object()) return EscapeControls(absl::StrCat(text, " ", line.line().json()));
  if (const auto event = json.find("event"); event != json.end())
    absl::StrAppend(&text, " ", ValueText(*event));
  for (const auto& [key, value] : json.items()) {
    const bool shown =
        key == "ts" || key == "level" || key == "daemon" || key == "job_id" || key == "event";
    if (!shown) absl::StrAppend(&text, " ", key, "=", ValueText(value));
  }
  return EscapeControls(text);
}

std::string LogNotes(const job::v1::LogsResponse& response) {
  std::string text;
  for (const job::v1::SilentDaemon& silent : response.silent()) {
    absl::StrAppend(&text,
                    EscapeControls(absl::StrCat("the lines of ", silent.daemon(),
                                                " are missing: ", silent.cause())),
                    "\n");
  }
  for (const job::v1::LostLines& lost : response.lost()) {
    absl::StrAppend(&text,
                    EscapeControls(absl::StrCat(lost.daemon(), " no longer keeps ", lost.count(),
                                                " older lines of the job; its own log has them")),
                    "\n");
  }
  return text;
}

absl::StatusOr<common::v1::LogLevel> ParseLogLevel(absl::string_view text) {
  for (const common::v1::LogLevel level :
       {common::v1::LOG_LEVEL_DEBUG, common::v1::LOG_LEVEL_INFO, common::v1::LOG_LEVEL_WARNING,
        common::v1::LOG_LEVEL_ERROR}) {
    if (text == LevelText(level)) return level;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no level ", text, "; there are debug, info, warning and error"));
}

}  // namespace sluice::cli
