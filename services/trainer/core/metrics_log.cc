#include "services/trainer/core/metrics_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "services/trainer/core/append_file.h"

namespace sluice::trainer {
namespace {

using Json = nlohmann::ordered_json;

// Bytes that are read at once when the file is searched backwards.
constexpr int64_t kBlock = 4096;
constexpr int64_t kMaxLine = 16 << 20;  // No line of ours is longer.

absl::StatusOr<std::string> ReadRange(int fd, int64_t begin, int64_t end) {
  std::string bytes(static_cast<size_t>(end - begin), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + done, bytes.size() - done, begin + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading the metrics log");
    if (n == 0) return absl::AbortedError("the metrics log became shorter while it was read");
    done += static_cast<size_t>(n);
  }
  return bytes;
}

// The offset after the last newline before `end`; 0 if there is none.
absl::StatusOr<int64_t> FindLineStart(int fd, int64_t end) {
  while (end > 0) {
    const int64_t begin = std::max<int64_t>(0, end - kBlock);
    SLUICE_ASSIGN_OR_RETURN(const std::string block, ReadRange(fd, begin, end));
    const size_t newline = block.rfind('\n');
    if (newline != std::string::npos) return begin + static_cast<int64_t>(newline) + 1;
    end = begin;
  }
  return 0;
}

struct LineKey {
  int64_t step = 0;
  int64_t incarnation = 0;
};

// Reads the keys of a line. Nullopt if the line is no step.
std::optional<LineKey> ParseKey(const std::string& line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto step = object.find("step"), incarnation = object.find("incarnation");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  if (incarnation == object.end() || !incarnation->is_number_integer()) return std::nullopt;
  return LineKey{step->get<int64_t>(), incarnation->get<int64_t>()};
}

}  // namespace

double UnixSeconds(absl::Time time) { return static_cast<double>(absl::ToUnixMicros(time)) / 1e6; }

std::string MetricsLine(const StepRecord& record) {
  Json object = {{"step", record.step},
                 {"version", record.version.number},
                 {"incarnation", record.version.incarnation},
                 {"time", UnixSeconds(record.at)}};
  Json staleness = Json::object();
  for (const auto& [versions, tokens] : record.staleness)
    staleness[absl::StrCat(versions)] = tokens;

  for (const auto& [name, value] : record.values) {
    if (name != "staleness") object.emplace(name, value);  // emplace() keeps a fixed key.
  }
  object["staleness"] = std::move(staleness);
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The lines are in the order of steps, so the search goes backwards and ends at the first line that
// is kept. Its cost depends on the removed lines and not on the length of the file.
absl::StatusOr<int64_t> MetricsLog::FindKept(int fd, int64_t size, int64_t next, Cut* cut) const {
  SLUICE_ASSIGN_OR_RETURN(int64_t end, FindLineStart(fd, size));
  cut->bytes_unreadable = size - end;

  while (end > 0) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t begin, FindLineStart(fd, end - 1));
    std::optional<LineKey> key;
    if (end - begin <= kMaxLine) {
      SLUICE_ASSIGN_OR_RETURN(const std::string line, ReadRange(fd, begin, end));
      key = ParseKey(line);
    }

    if (key.has_value() && key->incarnation > incarnation_) {
      return absl::AbortedError(absl::StrCat(path_, " is written by incarnation ", key->incarnation,
                                             " of the trainer; this one is ", incarnation_));
    }
    if (key.has_value() && key->step < next) {
      cut->last_step = key->step;
      break;
    }
    if (key.has_value()) {
      ++cut->steps;
    } else {
      cut->bytes_unreadable += end - begin;
    }
    end = begin;
  }
  return end;
}

absl::StatusOr<MetricsLog::Cut> MetricsLog::CutBack(int64_t next) {
  Cut cut;
  SLUICE_ASSIGN_OR_RETURN(size_, AppendToFile(path_, "", [&](int fd, int64_t size) {
                            return FindKept(fd, size, next, &cut);
                          }));
  return cut;
}

absl::Status MetricsLog::Append(const StepRecord& record) {
  waiting_.emplace_back(record.step, MetricsLine(record) + "\n");
  if (waiting_.size() > kMaxWaiting) {
    waiting_.pop_front();
    ++lost_;
  }

  std::string bytes;
  for (const auto& [step, line] : waiting_) bytes += line;
  Cut cut;
  SLUICE_ASSIGN_OR_RETURN(size_, AppendToFile(path_, bytes, [&](int fd, int64_t size) {
                            return size == size_ ? absl::StatusOr<int64_t>(size)
                                                 : FindKept(fd, size, waiting_.front().first, &cut);
                          }));
  waiting_.clear();
  return absl::OkStatus();
}

}  // namespace sluice::trainer
