#include "tools/sluice/export.h"

#include <algorithm>
#include <filesystem>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::cli {
namespace {
constexpr absl::string_view kOwn[] = {"optimizer.safetensors", "cursor.bin", "lineage.jsonl", "state.json"};
}

absl::StatusOr<std::string> NewestCheckpoint(const std::string& dir, const std::string& job) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(dir));
  for (const std::string& name : names) {
    if (job.size() >= 8 && absl::EndsWith(name, absl::StrCat("-", job.substr(0, 8)))) return NewestCheckpoint(absl::StrCat(dir, "/", name), "");
  }
  int64_t newest = -1;
  for (const std::string& name : names) {
    int64_t step = 0;
    absl::string_view number = name;
    if (absl::ConsumePrefix(&number, "step-") && absl::SimpleAtoi(number, &step)) newest = std::max(newest, step);
  }
  if (newest < 0) return absl::NotFoundError(absl::StrCat("no checkpoint in ", dir));
  return absl::StrCat(dir, "/step-", newest);
}

absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out) {
  if (PathExists(out)) return absl::AlreadyExistsError(absl::StrCat(out, " is there already; name a directory to be made"));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(checkpoint));
  const std::string temporary = absl::StrCat(out, ".partial");
  SLUICE_RETURN_IF_ERROR(RemoveTree(temporary));
  SLUICE_RETURN_IF_ERROR(MakeDirs(temporary));
  std::error_code error;
  for (const std::string& name : names) {
    const std::string from = absl::StrCat(checkpoint, "/", name);
    if (absl::c_linear_search(kOwn, name) || !std::filesystem::is_regular_file(from, error)) continue;
    std::filesystem::copy_file(from, absl::StrCat(temporary, "/", name), error);
    if (error) return ErrnoStatus(error.value(), absl::StrCat("copy of ", from));
  }
  SLUICE_RETURN_IF_ERROR(SyncDir(temporary));
  std::filesystem::rename(temporary, out, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("rename to ", out));
  return absl::OkStatus();
}

}  // namespace sluice::cli
