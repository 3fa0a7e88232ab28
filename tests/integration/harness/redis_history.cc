#include "tests/integration/harness/redis_history.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::integration {
namespace {

constexpr char kStateKey[] = "sluice:state";
constexpr uint64_t kMaxFile = uint64_t{1} << 30;

// Takes "<mark>N\r\n" from the front. False: it is not there.
bool TakeNumber(char mark, absl::string_view* text, size_t* number) {
  const size_t end = text->find("\r\n");
  if (end == text->npos || text->front() != mark) return false;
  if (!absl::SimpleAtoi(text->substr(1, end - 1), number)) return false;
  text->remove_prefix(end + 2);
  return true;
}

// Takes one command from the front. A file whose end was cut by a kill may end within one, which
// gives no words.
absl::StatusOr<std::vector<std::string>> TakeCommand(absl::string_view* text) {
  size_t words = 0;
  if (!TakeNumber('*', text, &words)) {
    return absl::DataLossError(
        absl::StrCat("the append-only file has no command at \"", text->substr(0, 40), "\""));
  }
  std::vector<std::string> command;
  for (size_t i = 0; i < words; ++i) {
    size_t size = 0;
    if (!TakeNumber('$', text, &size) || text->size() < size + 2) {
      *text = {};
      return std::vector<std::string>();
    }
    command.emplace_back(text->substr(0, size));
    text->remove_prefix(size + 2);
  }
  return command;
}

}  // namespace

absl::StatusOr<std::vector<StoreWrite>> ReadStoreHistory(const std::string& dir) {
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(dir + "/appendonlydir")) {
    if (absl::EndsWith(file.path().string(), ".incr.aof")) files.push_back(file.path().string());
  }
  if (files.size() != 1)
    return absl::DataLossError(absl::StrCat(dir, " has ", files.size(),
                                            " append-only files; wanted one that was never "
                                            "rewritten"));

  SLUICE_ASSIGN_OR_RETURN(const std::string content, ReadFile(files[0], kMaxFile));
  std::vector<StoreWrite> history;
  for (absl::string_view left = content; !left.empty();) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> command, TakeCommand(&left));
    if (command.size() < 2 || !absl::EqualsIgnoreCase(command[0], "HSET") ||
        command[1] != kStateKey)
      continue;
    StoreWrite write;
    for (size_t i = 2; i + 1 < command.size(); i += 2) {
      if (command[i] == "by") write.writer = command[i + 1];
      if (command[i] == "revision") (void)absl::SimpleAtoi(command[i + 1], &write.revision);
    }
    if (!write.writer.empty()) history.push_back(write);
  }
  return history;
}

absl::Status CheckOneLeaderAtATime(const std::vector<StoreWrite>& history, bool failed_over) {
  std::set<std::string> before;  // All that another one has followed.
  int64_t revision = 0;
  for (size_t i = 0; i < history.size(); ++i) {
    const StoreWrite& write = history[i];
    if (i > 0 && write.writer != history[i - 1].writer) before.insert(history[i - 1].writer);
    if (before.contains(write.writer)) {
      return absl::InternalError(
          absl::StrCat("write ", i, ": ", write.writer, " writes again after another has led"));
    }
    // Whoever writes back what was lost writes the revision that it had reached.
    const bool goes_on = i > 0 && write.writer == history[i - 1].writer;
    const bool skips = failed_over && goes_on && write.revision > revision;
    if (write.revision != 0 && write.revision != revision + 1 && write.revision != revision &&
        !skips) {
      return absl::InternalError(
          absl::StrCat("write ", i, " has revision ", write.revision, " after ", revision));
    }
    if (write.revision != 0) revision = write.revision;
  }
  return absl::OkStatus();
}

int CountLeaders(const std::vector<StoreWrite>& history) {
  std::set<std::string> writers;
  for (const StoreWrite& write : history) writers.insert(write.writer);
  return static_cast<int>(writers.size());
}

}  // namespace sluice::integration
