#include "services/trainer/core/checkpoint.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"
#include "services/trainer/core/lineage.h"

namespace sluice::trainer {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kCursor[] = "cursor.bin";
constexpr char kLineage[] = "lineage.jsonl";
constexpr char kState[] = "state.json";
// Writes and syncs one file of a folder that nobody reads yet.
absl::Status WriteSynced(const std::string& path, absl::string_view bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, path);
  absl::Status status;
  while (!bytes.empty() && status.ok()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      status = ErrnoStatus(errno, path);
    } else {
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  if (status.ok() && ::fsync(fd) != 0) status = ErrnoStatus(errno, absl::StrCat("syncing ", path));
  ::close(fd);
  return status;
}

// Puts the folder `from` in the place of `to`, which may exist and is then found under `from`.
absl::Status Swap(const std::string& from, const std::string& to) {
  const unsigned flags = PathExists(to) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) != 0) {
    return ErrnoStatus(errno, absl::StrCat("renaming ", from, " to ", to));
  }
  return absl::OkStatus();
}

json StateToJson(const TrainState& state) {
  return {{"format", kFormat},
          {"job", state.job},
          {"incarnation", state.version.incarnation},
          {"version", state.version.number},
          {"updates", state.updates},
          {"skips_in_a_row", state.skips_in_a_row},
          {"seed", state.seed},
          {"ledger_hash", ToHex(state.ledger_hash)}};
}

absl::StatusOr<TrainState> StateFromJson(const json& object) {
  TrainState state;
  state.job = object.at("job").get<std::string>();
  state.version = {object.at("incarnation").get<int64_t>(), object.at("version").get<int64_t>()};
  state.updates = object.at("updates").get<int64_t>();
  state.skips_in_a_row = object.at("skips_in_a_row").get<int64_t>();
  state.seed = object.at("seed").get<uint64_t>();
  SLUICE_ASSIGN_OR_RETURN(state.ledger_hash, FromHex(object.at("ledger_hash").get<std::string>()));
  return state;
}

struct StateFile {
  TrainState state;
  std::map<std::string, std::pair<uint64_t, std::string>> files;  // Name -> size, SHA-256 in hex.
};

absl::StatusOr<StateFile> ReadStateFile(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kState);
  absl::StatusOr<std::string> text = ReadFile(path, 1 << 20);
  if (!text.ok()) return absl::DataLossError(text.status().message());
  try {
    const json object = json::parse(*text);
    const int format = object.at("format").get<int>();
    if (format > kFormat) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": format ", format, " is newer than this build's ", kFormat));
    }
    StateFile file;
    SLUICE_ASSIGN_OR_RETURN(file.state, StateFromJson(object));
    for (const auto& [name, entry] : object.at("files").items()) {
      file.files[name] = {entry.at("bytes").get<uint64_t>(), entry.at("sha256").get<std::string>()};
    }
    return file;
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat(path, ": ", e.what()));
  }
}

absl::StatusOr<std::string> ReadVerified(const std::string& dir, const StateFile& file, const std::string& name) {
  const std::string path = absl::StrCat(dir, "/", name);
  const auto it = file.files.find(name);
  if (it == file.files.end()) return absl::DataLossError(absl::StrCat(dir, "/", kState, ": does not list ", name));
  absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return absl::DataLossError(bytes.status().message());
  if (bytes->size() != it->second.first) {
    return absl::DataLossError(absl::StrCat(path, ": ", bytes->size(), " bytes, state.json says ", it->second.first));
  }
  if (ToHex(Sha256(*bytes)) != it->second.second) return absl::DataLossError(absl::StrCat(path, ": SHA-256 differs from state.json's"));
  return bytes;
}

absl::Status VerifyLineage(const std::string& dir, const StateFile& file) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadVerified(dir, file, kLineage));
  const absl::StatusOr<LineageSummary> summary = CheckLineage(text, file.state.version.number);
  if (!summary.ok()) return Annotate(summary.status(), absl::StrCat(dir, "/", kLineage));
  if (summary->hash != file.state.ledger_hash) {
    return absl::DataLossError(absl::StrCat(dir, "/", kLineage, ": hash chain ends in ", ToHex(summary->hash), ", the ledger's is ",
                                            ToHex(file.state.ledger_hash)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const StateFile file, ReadStateFile(path));
  for (const auto& [name, entry] : file.files) SLUICE_RETURN_IF_ERROR(ReadVerified(path, file, name).status());
  SLUICE_RETURN_IF_ERROR(VerifyLineage(path, file));

  Checkpoint checkpoint{path, {}, {}, file.state, ""};
  SLUICE_ASSIGN_OR_RETURN(checkpoint.cursor, ReadVerified(path, file, kCursor));
  const auto tensors = [&]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(const ModelDir model, ReadModelDir(path));
    SLUICE_ASSIGN_OR_RETURN(checkpoint.model, ReadWeights(model, DType::kF32));
    SLUICE_ASSIGN_OR_RETURN(checkpoint.optimizer, ReadSafetensors(absl::StrCat(path, "/", kOptimizer)));
    return absl::OkStatus();
  };
  if (absl::Status status = tensors(); !status.ok()) return absl::DataLossError(status.message());
  return checkpoint;
}

absl::Status CheckpointStore::WriteFiles(const std::string& dir, const CheckpointContents& contents) const {
  SLUICE_RETURN_IF_ERROR(WriteModelFiles(dir, options_.source, *contents.model));
  SLUICE_RETURN_IF_ERROR(WriteSafetensors(absl::StrCat(dir, "/", kOptimizer), *contents.optimizer));
  SLUICE_RETURN_IF_ERROR(WriteSynced(absl::StrCat(dir, "/", kCursor), contents.cursor));
  std::string lineage;
  if (!contents.previous.empty()) {
    SLUICE_ASSIGN_OR_RETURN(lineage, ReadFile(absl::StrCat(contents.previous, "/", kLineage)));
  }
  lineage += contents.lineage_tail;
  SLUICE_RETURN_IF_ERROR(WriteSynced(absl::StrCat(dir, "/", kLineage), lineage));

  json state = StateToJson(contents.state);
  json& files = state["files"] = json::object();
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(dir));
  for (const std::string& name : names) {
    SLUICE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(absl::StrCat(dir, "/", name)));
    files[name] = {{"bytes", bytes.size()}, {"sha256", ToHex(Sha256(bytes))}};
  }
  return WriteSynced(absl::StrCat(dir, "/", kState), state.dump(2) + "\n");
}

absl::Status CheckpointStore::Prepare() const {
  const std::string probe = absl::StrCat(options_.dir, "/.probe.tmp");
  absl::Status status = MakeDirs(options_.dir);
  if (status.ok()) status = WriteSynced(probe, "");
  if (status.ok()) status = RemoveTree(probe);
  return Annotate(status, "checkpoint.dir cannot be written; name another");
}

absl::StatusOr<std::string> CheckpointStore::Write(const CheckpointContents& contents) {
  const std::string name = absl::StrCat("step-", contents.state.version.number);
  const std::string path = absl::StrCat(options_.dir, "/", name);
  const std::string temporary = absl::StrCat(options_.dir, "/.", name, ".tmp");
  SLUICE_RETURN_IF_ERROR(MakeDirs(options_.dir));
  SLUICE_RETURN_IF_ERROR(RemoveTree(temporary));
  SLUICE_RETURN_IF_ERROR(MakeDirs(temporary));
  if (absl::Status status = WriteFiles(temporary, contents); !status.ok()) {
    (void)RemoveTree(temporary);
    return Annotate(status, absl::StrCat("writing checkpoint ", path));
  }
  SLUICE_RETURN_IF_ERROR(SyncDir(temporary));
  SLUICE_FAILPOINT_STATUS("trainer.checkpoint.before_rename");
  SLUICE_RETURN_IF_ERROR(Swap(temporary, path));
  SLUICE_RETURN_IF_ERROR(SyncDir(options_.dir));
  (void)RemoveTree(temporary);  // What was there under this number before.
  Prune();
  return path;
}

std::vector<std::string> CheckpointStore::List() const {
  std::vector<std::pair<PolicyVersion, std::string>> found;
  const absl::StatusOr<std::vector<std::string>> names = ListDir(options_.dir);
  if (!names.ok()) return {};
  for (const std::string& name : *names) {
    int64_t number;
    if (!absl::StartsWith(name, "step-") || !absl::SimpleAtoi(name.substr(5), &number)) continue;
    const std::string path = absl::StrCat(options_.dir, "/", name);
    if (const absl::StatusOr<StateFile> file = ReadStateFile(path); file.ok()) found.emplace_back(file->state.version, path);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [version, path] : found) paths.push_back(std::move(path));
  return paths;
}

absl::StatusOr<std::optional<Checkpoint>> CheckpointStore::Newest(std::vector<std::string>* damaged) const {
  std::vector<std::string> paths = List();
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(*path);
    if (checkpoint.ok()) return std::optional<Checkpoint>(*std::move(checkpoint));
    if (checkpoint.status().code() != absl::StatusCode::kDataLoss) return checkpoint.status();
    if (damaged != nullptr) damaged->push_back(std::string(checkpoint.status().message()));
  }
  return std::optional<Checkpoint>();
}

absl::StatusOr<Checkpoint> CheckpointStore::At(int64_t number) const {
  const std::string path = absl::StrCat(options_.dir, "/step-", number);
  if (!PathExists(path)) return absl::NotFoundError(absl::StrCat("no checkpoint ", path));
  return ReadCheckpoint(path);
}

void CheckpointStore::Prune() const {
  const std::vector<std::string> paths = List();
  for (size_t i = 0; i + options_.keep_last < paths.size(); ++i) {
    int64_t number = 0;
    const std::string digits = paths[i].substr(paths[i].rfind('-') + 1);
    if (options_.keep_every_steps > 0 && absl::SimpleAtoi(digits, &number) && number % options_.keep_every_steps == 0) continue;
    (void)RemoveTree(paths[i]);
  }
}

}  // namespace sluice::trainer
