#include "common/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/base/trace.h"
#include "common/log/job_lines.h"

namespace sluice::log {
namespace {

constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};

struct State {
  std::shared_ptr<spdlog::logger> logger;
  std::string daemon;  // Written only by Init(), before other threads start.
  std::atomic<Level> lowest{Level::kInfo};

  State()
      : logger(std::make_shared<spdlog::logger>(
            "sluice", std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
    logger->set_pattern("%v");
    logger->set_level(spdlog::level::trace);
    logger->flush_on(spdlog::level::trace);
  }
};

// Never destroyed, because threads may log while the process ends.
State& GetState() {
  static State* const state = new State;
  return *state;
}

std::string QuoteJson(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ToJson(const Value& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return QuoteJson(held);
        } else {
          // JSON has no NaN or infinity; they become null.
          return nlohmann::json(held).dump();
        }
      },
      value.variant());
}

void AppendField(std::string* line, absl::string_view key, absl::string_view json) {
  absl::StrAppend(line, line->size() > 1 ? "," : "", QuoteJson(key), ":", json);
}

// Longest line that is kept in memory. Of a longer one only the event is.
constexpr size_t kLongestKept = 64 << 10;

// The job that the line names. Empty: none.
absl::string_view JobNameOf(std::initializer_list<Field> fields) {
  for (const Field& field : fields) {
    if (field.key != "job_id") continue;
    const auto* const name = std::get_if<std::string>(&field.value.variant());
    return name == nullptr ? "" : absl::string_view(*name);
  }
  return "";
}

std::string StatusToText(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return absl::StrCat(absl::StatusCodeToString(status.code()), status.ok() ? "" : ": ",
                      status.message(), reason.empty() ? "" : absl::StrCat(" (", reason, ")"));
}

}  // namespace

Value::Value(const absl::Status& status) : value_(StatusToText(status)) {}

void Init(absl::string_view daemon, Level lowest) {
  GetState().daemon = std::string(daemon);
  GetState().lowest = lowest;
}

bool ParseLevel(absl::string_view text, Level* level) {
  for (int i = 0; i < 4; ++i) {
    if (text == kLevelNames[i]) {
      *level = static_cast<Level>(i);
      return true;
    }
  }
  return false;
}

bool Enabled(Level level) { return level >= GetState().lowest.load(std::memory_order_relaxed); }

std::string FormatLine(absl::string_view ts, Level level, absl::string_view daemon,
                       absl::string_view event, std::initializer_list<Field> fields,
                       absl::string_view trace_id) {
  std::string line = "{";
  AppendField(&line, "ts", QuoteJson(ts));
  AppendField(&line, "level", QuoteJson(kLevelNames[static_cast<int>(level)]));
  AppendField(&line, "daemon", QuoteJson(daemon));
  // job_id has a fixed place, right before the event.
  for (const Field& field : fields) {
    if (field.key == "job_id") AppendField(&line, field.key, ToJson(field.value));
  }
  AppendField(&line, "event", QuoteJson(event));
  for (const Field& field : fields) {
    if (field.key != "job_id") AppendField(&line, field.key, ToJson(field.value));
  }
  if (!trace_id.empty()) AppendField(&line, "trace_id", QuoteJson(trace_id));
  return line + "}";
}

namespace {

// Writes a line, and keeps it for the job with this id, or if `job` is empty for the one that its
// field `job_id` names.
void WriteLine(absl::string_view job, Level level, absl::string_view event,
               std::initializer_list<Field> fields) {
  const absl::Time now = absl::Now();
  const std::string ts = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone());
  const std::string& daemon = GetState().daemon;
  const std::string& trace = CurrentTrace().id;
  std::string line = FormatLine(ts, level, daemon, event, fields, trace);
  GetState().logger->log(spdlog::level::info, "{}", line);

  const absl::string_view name = JobNameOf(fields);
  if (job.empty() && name.empty()) return;
  if (line.size() > kLongestKept)
    line = FormatLine(ts, level, daemon, event, {{"job_id", name}, {"bytes_left_out", line.size()}},
                      trace);
  JobLines::Line kept{.at = now, .level = level, .json = std::move(line)};
  if (job.empty()) ProcessJobLines().Add(name, std::move(kept));
  else ProcessJobLines().AddTo(job, std::move(kept));
}

}  // namespace

void Write(Level level, absl::string_view event, std::initializer_list<Field> fields) {
  if (Enabled(level)) WriteLine("", level, event, fields);
}

void WriteFor(absl::string_view job, Level level, absl::string_view event,
              std::initializer_list<Field> fields) {
  if (Enabled(level)) WriteLine(job, level, event, fields);
}

void WriteAudit(absl::string_view job, std::initializer_list<Field> fields) {
  WriteLine(job, Level::kInfo, "audit", fields);
}

}  // namespace sluice::log
