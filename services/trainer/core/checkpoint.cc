#include "services/trainer/core/checkpoint.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "common/checkpoint/safetensors.h"
#include "common/log/log.h"
#include "nlohmann/json.hpp"
#include "services/trainer/core/evaluations.h"
#include "services/trainer/core/lineage.h"

namespace sluice::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Format 1 had no digest of state.json and no masters; format 3 has them in several files; format 4
// has a critic; format 5 has tensors in parts.
constexpr int kFormat = 2, kShardedFormat = 3, kCriticFormat = 4, kPartsFormat = 5;
constexpr int kMaxStateDepth = 4;
// The stems of the names of their files.
constexpr char kMasters[] = "masters";
constexpr char kOptimizer[] = "optimizer";
constexpr char kCritic[] = "critic";
constexpr char kCriticMoments[] = "critic_moments";
constexpr char kCursor[] = "cursor.bin";
constexpr char kLineage[] = "lineage.jsonl";
constexpr char kState[] = "state.json";
constexpr char kOwnDigest[] = "sha256";  // Key of state.json's own digest.

std::string PathIn(const std::string& dir, absl::string_view name) {
  return absl::StrCat(dir, "/", name);
}

constexpr char kPartsEnd[] = ".parts.json";

// Whether a file belongs to the tensors of a stem (shards.h, parts.h).
bool IsShardOf(absl::string_view stem, absl::string_view name) {
  return absl::ConsumePrefix(&name, stem) &&
         (name == ".safetensors" || name == ".safetensors.index.json" || name == kPartsEnd ||
          (absl::StartsWith(name, "-") && (absl::EndsWith(name, ".safetensors") ||
                                           absl::EndsWith(name, ".safetensors.index.json"))));
}

bool IsModelFile(absl::string_view name) {
  for (const char* stem : {kMasters, kOptimizer, kCritic, kCriticMoments}) {
    if (IsShardOf(stem, name)) return false;
  }
  return name != kCursor && name != kLineage;
}

bool Lists(const WrittenFiles& files, absl::string_view stem) {
  return absl::c_any_of(files, [&](const auto& file) { return IsShardOf(stem, file.first); });
}

bool IsSharded(const WrittenFiles& files, absl::string_view stem) {
  return files.contains(absl::StrCat(stem, ".safetensors.index.json"));
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("renaming ", from, " to ", to));
}

constexpr char kOld[] = ".old.tmp";  // End of the name of a checkpoint that is being replaced.

// What ExchangeFolders() does, with plain renames. If the process is killed between two of them,
// RecoverOld() brings the old folder back.
absl::Status ExchangeByPlainRenames(const std::string& from, const std::string& to) {
  if (!PathExists(to)) return Rename(from, to);
  const std::string old = absl::StrCat(absl::StripSuffix(from, ".tmp"), kOld);
  SLUICE_RETURN_IF_ERROR(RemoveTree(old));
  SLUICE_RETURN_IF_ERROR(Rename(to, old));
  if (absl::Status status = Rename(from, to); !status.ok()) {
    (void)Rename(old, to);
    return status;
  }
  return Rename(old, from);
}

// Gives the folder `name` of `dir`, .step-N.I.old.tmp, its name step-N back if there is no step-N.
// Returns whether it did.
absl::StatusOr<bool> RecoverOld(const std::string& dir, absl::string_view name) {
  const std::string step(name.substr(1, name.find('.', 1) - 1));
  if (!absl::EndsWith(name, kOld) || PathExists(PathIn(dir, step))) return false;
  SLUICE_RETURN_IF_ERROR(Rename(PathIn(dir, name), PathIn(dir, step)));
  return true;
}

// Renames the folder `from` to `to`. If `to` exists, the two are exchanged, and the old one is then
// at `from`. NFS and many mounts of object stores have no such exchange; there it is done in steps.
absl::Status ExchangeFolders(const std::string& from, const std::string& to) {
  if (!HitFailpoint("trainer.checkpoint.no_exchange").ok()) return ExchangeByPlainRenames(from, to);
  const unsigned flags = PathExists(to) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0)
    return absl::OkStatus();
  const int error = errno;
  if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP)
    return ExchangeByPlainRenames(from, to);
  return ErrnoStatus(error, absl::StrCat("renaming ", from, " to ", to));
}

struct StateFile {
  TrainState state;
  WrittenFiles files;
};

json StateToJson(const StateFile& file) {
  const bool sharded = IsSharded(file.files, kMasters) || IsSharded(file.files, kOptimizer);
  const bool critic = Lists(file.files, kCritic);
  const bool parts = absl::c_any_of(
      file.files, [](const auto& entry) { return absl::EndsWith(entry.first, kPartsEnd); });
  json object = {{"format", parts     ? kPartsFormat
                            : critic  ? kCriticFormat
                            : sharded ? kShardedFormat
                                      : kFormat},
                 {"job", file.state.job},
                 {"incarnation", file.state.version.incarnation},
                 {"version", file.state.version.number},
                 {"updates", file.state.updates},
                 {"skips_in_a_row", file.state.skips_in_a_row},
                 {"seed", file.state.seed},
                 {"ledger_hash", ToHex(file.state.ledger_hash)},
                 {"files", json::object()}};
  if (file.state.lora_alpha != 0) object["lora_alpha"] = file.state.lora_alpha;
  if (critic) object["critic_updates"] = file.state.critic_updates;
  if (file.state.reward_kl != 0) object["reward_kl"] = file.state.reward_kl;
  for (const auto& [name, digest] : file.files) {
    object["files"][name] = {{"bytes", digest.bytes}, {"sha256", ToHex(digest.sha256)}};
  }
  object[kOwnDigest] = ToHex(Sha256(object.dump()));
  return object;
}

absl::StatusOr<StateFile> StateFromJson(const ordered_json& object) {
  StateFile file;
  TrainState& state = file.state;
  state.job = object.at("job").get<std::string>();
  state.version = {object.at("incarnation").get<int64_t>(), object.at("version").get<int64_t>()};
  state.updates = object.at("updates").get<int64_t>();
  state.skips_in_a_row = object.at("skips_in_a_row").get<int64_t>();
  state.seed = object.at("seed").get<uint64_t>();
  state.lora_alpha = object.value("lora_alpha", 0.0);
  state.critic_updates = object.value("critic_updates", int64_t{0});
  state.reward_kl = object.value("reward_kl", 0.0);
  SLUICE_ASSIGN_OR_RETURN(state.ledger_hash, FromHex(object.at("ledger_hash").get<std::string>()));

  for (const auto& [name, entry] : object.at("files").items()) {
    if (absl::StrContains(name, '/')) {
      return absl::DataLossError(absl::StrCat("\"", Printable(name), "\" is not a file name"));
    }
    FileDigest& digest = file.files[name];
    digest.bytes = entry.at("bytes").get<uint64_t>();
    SLUICE_ASSIGN_OR_RETURN(digest.sha256, FromHex(entry.at("sha256").get<std::string>()));
  }
  for (const char* name : {kCursor, kLineage}) {
    if (!file.files.contains(name))
      return absl::DataLossError(absl::StrCat("it does not list ", name));
  }
  if (!Lists(file.files, kOptimizer))
    return absl::DataLossError(absl::StrCat("it does not list ", kOptimizer, ".safetensors"));
  if (Lists(file.files, kCritic) != Lists(file.files, kCriticMoments)) {
    return absl::DataLossError(
        absl::StrCat("it lists only one of ", kCritic, " and ", kCriticMoments, ".safetensors"));
  }
  return file;
}

// Checks the object's digest of itself and removes it from the object.
absl::Status RemoveOwnDigest(int format, ordered_json* object) {
  const auto own = object->find(kOwnDigest);
  if (own == object->end()) {
    return format == 1
               ? absl::OkStatus()
               : absl::DataLossError("it has no SHA-256 of itself, which format 2 must have");
  }
  const std::string stored = own->get<std::string>();
  object->erase(kOwnDigest);
  const std::string found = ToHex(Sha256(json(*object).dump()));
  if (found == stored) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("its content has the SHA-256 ", found, ", but it was written with ", stored));
}

absl::StatusOr<StateFile> ParseState(const std::string& text, const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(ordered_json object, ParseJson(text, path, kMaxStateDepth));
  const int format = object.at("format").get<int>();
  if (format > kPartsFormat) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.reason = "NEWER_FORMAT",
         .hint =
             "use the build that wrote it, or move that folder away to go on from an older one"},
        absl::StrCat(path, ": the checkpoint has format ", format,
                     ", this build reads formats 1 to ", kPartsFormat));
  }
  SLUICE_RETURN_IF_ERROR(RemoveOwnDigest(format, &object));
  return StateFromJson(object);
}

// DATA_LOSS: state.json is missing or damaged. FAILED_PRECONDITION: a newer build wrote it.
absl::StatusOr<StateFile> ReadStateFile(const std::string& dir) {
  const std::string path = PathIn(dir, kState);
  const absl::StatusOr<std::string> text = ReadFile(path, 1 << 20);
  if (!text.ok()) return absl::DataLossError(text.status().message());
  try {
    absl::StatusOr<StateFile> file = ParseState(*text, path);
    if (file.ok() || absl::IsFailedPrecondition(file.status())) return file;
    const bool named = absl::StrContains(file.status().message(), path);
    return absl::DataLossError(absl::StrCat(named ? "" : path + ": ", file.status().message()));
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat(path, ": ", e.what()));
  }
}

absl::Status CompareDigests(const std::string& path, const FileDigest& found,
                            const FileDigest& written) {
  if (found.bytes != written.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", found.bytes, " bytes, but state.json says ", written.bytes));
  }
  if (found.sha256 != written.sha256) {
    return absl::DataLossError(absl::StrCat(path, " has the SHA-256 ", ToHex(found.sha256),
                                            ", but state.json says ", ToHex(written.sha256)));
  }
  return absl::OkStatus();
}

absl::Status VerifyFile(const std::string& dir, const std::string& name,
                        const FileDigest& written) {
  const std::string path = PathIn(dir, name);
  const absl::StatusOr<FileDigest> found = DigestFile(path);
  if (!found.ok()) return absl::DataLossError(found.status().message());
  return CompareDigests(path, *found, written);
}

// Reads the lineage twice, because its lines can be trusted only once the digest of the file is
// known to be right.
absl::Status VerifyLineage(const std::string& dir, const StateFile& file) {
  SLUICE_RETURN_IF_ERROR(VerifyFile(dir, kLineage, file.files.at(kLineage)));

  const std::string path = PathIn(dir, kLineage);
  LineageCheck check(file.state.version.number);
  SLUICE_RETURN_IF_ERROR(ReadFileInPieces(
      path, [&](absl::string_view piece) { return Annotate(check.Add(piece), path); }));
  const absl::StatusOr<LineageSummary> summary = check.Finish();
  if (!summary.ok()) return Annotate(summary.status(), path);
  if (summary->hash != file.state.ledger_hash) {
    return absl::DataLossError(absl::StrCat(path, ": the hash chain ends in ", ToHex(summary->hash),
                                            ", but the ledger's hash is ",
                                            ToHex(file.state.ledger_hash)));
  }
  return absl::OkStatus();
}

// Verifies the files for which `chosen` is true. The lineage is also checked line by line.
absl::Status VerifyFiles(const std::string& dir, const StateFile& file,
                         const std::function<bool(absl::string_view)>& chosen) {
  for (const auto& [name, digest] : file.files) {
    if (!chosen(name)) continue;
    SLUICE_RETURN_IF_ERROR(name == kLineage ? VerifyLineage(dir, file)
                                            : VerifyFile(dir, name, digest));
  }
  return absl::OkStatus();
}

bool AnyFile(absl::string_view) { return true; }

// Replaces the parameters that model.safetensors holds rounded with their fp32 masters.
absl::Status RestoreMasters(const std::string& dir, const std::vector<TensorSpec>& stored,
                            TensorSet* model) {
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<const TensorSource> source,
                          OpenTensors(dir, kMasters));
  std::map<std::string, size_t> masters;
  for (size_t i = 0; i < source->specs().size(); ++i) masters[source->specs()[i].name] = i;

  for (const TensorSpec& spec : stored) {
    if (spec.dtype == DType::kF32) continue;
    const auto master = masters.find(spec.name);
    const TensorSpec* found = master == masters.end() ? nullptr : &source->specs()[master->second];
    if (found == nullptr || found->dtype != DType::kF32 || found->shape != spec.shape) {
      return absl::DataLossError(absl::StrCat(PathIn(dir, kMasters), ".safetensors does not hold ",
                                              spec.name, " as ",
                                              ShapeText(DType::kF32, spec.shape)));
    }
    const int64_t i = model->Find(spec.name);
    SLUICE_RETURN_IF_ERROR(source->Read(master->second, 0, model->elements(i), model->data(i)));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorSet> LoadModel(const std::string& dir, const StateFile& file) {
  SLUICE_ASSIGN_OR_RETURN(const ModelDir source, ReadModelDir(dir));
  SLUICE_ASSIGN_OR_RETURN(TensorSet model, ReadWeights(source, DType::kF32));
  if (!Lists(file.files, kMasters)) return model;
  SLUICE_ASSIGN_OR_RETURN(const std::vector<TensorSpec> stored, ReadWeightSpecs(source));
  SLUICE_RETURN_IF_ERROR(RestoreMasters(dir, stored, &model));
  return model;
}

// Writes to `to` the lineage of `previous`, which is checked against its digest while it is copied,
// followed by `tail`.
absl::StatusOr<FileDigest> CopyLineage(const std::string& previous, const std::string& tail,
                                       const std::string& to) {
  FileDigest written;
  if (previous.empty()) {
    const absl::string_view text = tail;
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(to, absl::MakeConstSpan(&text, 1), &written));
    return written;
  }

  const std::string from = PathIn(previous, kLineage);
  const absl::StatusOr<StateFile> file = ReadStateFile(previous);
  const absl::StatusOr<CopiedFile> copied = CopyFile(from, to, tail);
  absl::Status status = copied.status();
  if (!file.ok()) {
    status = file.status();
  } else if (copied.ok()) {
    status = CompareDigests(from, copied->from, file->files.at(kLineage));
  } else if (absl::IsNotFound(status)) {
    status = absl::DataLossError(status.message());
  }
  if (status.ok()) return copied->to;
  if (!absl::IsDataLoss(status)) return status;
  return Error(
      absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED",
      absl::StrCat(status.message(),
                   "; it changed since it was written, so no checkpoint can go on from it"));
}

}  // namespace

bool IsCheckpoint(const std::string& dir) { return PathExists(PathIn(dir, kState)); }

std::optional<CheckpointEntry> FindEarlierJob(const std::string& dir) {
  const std::filesystem::path own(dir);
  const std::string folder = own.filename().string();
  const std::string name = folder.substr(0, folder.rfind('-') + 1);
  const absl::StatusOr<std::vector<std::string>> names = ListDir(own.parent_path().string());
  if (name.empty() || !names.ok()) return std::nullopt;

  std::optional<CheckpointEntry> newest;
  std::filesystem::file_time_type newest_time;

  for (const std::string& other : *names) {
    const bool same_name = absl::StartsWith(other, name) && other.size() == folder.size();
    if (!same_name || other == folder) continue;

    const std::string path = (own.parent_path() / other).string();
    const std::vector<CheckpointEntry> entries = CheckpointStore({.dir = path}).List();
    // The last entry is the newest; if even that cannot be read, none can.
    if (entries.empty() || !entries.back().status.ok()) continue;
    std::error_code error;
    const auto time = std::filesystem::last_write_time(path, error);
    if (newest.has_value() && time <= newest_time) continue;
    newest = entries.back();
    newest_time = time;
  }
  return newest;
}

absl::StatusOr<TrainState> VerifyCheckpoint(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const StateFile file, ReadStateFile(path));
  SLUICE_RETURN_IF_ERROR(VerifyFiles(path, file, AnyFile));
  return file.state;
}

namespace {
// Loads a verified checkpoint, with or without its model.
absl::StatusOr<Checkpoint> LoadVerified(const std::string& path, const StateFile& file,
                                        bool with_model) {
  Checkpoint checkpoint{.path = path, .state = file.state};
  const auto load = [&]() -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(checkpoint.cursor, ReadFile(PathIn(path, kCursor)));
    if (with_model) {
      SLUICE_ASSIGN_OR_RETURN(checkpoint.model, LoadModel(path, file));
    }
    SLUICE_ASSIGN_OR_RETURN(checkpoint.optimizer, OpenTensors(path, kOptimizer));
    if (!Lists(file.files, kCritic)) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(checkpoint.critic, OpenTensors(path, kCritic));
    SLUICE_ASSIGN_OR_RETURN(checkpoint.critic_moments, OpenTensors(path, kCriticMoments));
    return absl::OkStatus();
  };

  const absl::Status status = load();
  if (status.ok()) return checkpoint;
  // Too little memory does not mean that the checkpoint is damaged; an older one would need as
  // much.
  return absl::IsResourceExhausted(status) ? status : absl::DataLossError(status.message());
}
}  // namespace

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const StateFile file, ReadStateFile(path));
  SLUICE_RETURN_IF_ERROR(VerifyFiles(path, file, AnyFile));
  return LoadVerified(path, file, /*with_model=*/true);
}

absl::StatusOr<Checkpoint> ReadCheckpointWithoutModel(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const StateFile file, ReadStateFile(path));
  SLUICE_RETURN_IF_ERROR(VerifyFiles(path, file, [](absl::string_view name) {
    return !IsModelFile(name) && !IsShardOf(kMasters, name);
  }));
  return LoadVerified(path, file, /*with_model=*/false);
}

absl::StatusOr<TensorSet> ReadCheckpointModel(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const StateFile file, ReadStateFile(path));
  SLUICE_RETURN_IF_ERROR(VerifyFiles(path, file, [](absl::string_view name) {
    return IsModelFile(name) || IsShardOf(kMasters, name);
  }));
  absl::StatusOr<TensorSet> model = LoadModel(path, file);
  if (!model.ok()) return absl::DataLossError(model.status().message());
  return model;
}

absl::Status CopyCheckpointModel(const std::string& path, const std::string& to) {
  SLUICE_ASSIGN_OR_RETURN(const StateFile file, ReadStateFile(path));
  for (const auto& [name, written] : file.files) {
    if (!IsModelFile(name)) continue;
    SLUICE_ASSIGN_OR_RETURN(const CopiedFile copied,
                            CopyFile(PathIn(path, name), PathIn(to, name)));
    SLUICE_RETURN_IF_ERROR(CompareDigests(PathIn(path, name), copied.from, written));
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::WriteModel(const std::string& dir, const TensorSource& parameters,
                                         WrittenFiles* written) const {
  std::vector<TensorSpec> specs(parameters.specs().begin(), parameters.specs().end());
  std::vector<size_t> rounded;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto type = options_.model_types.find(specs[i].name);
    if (type == options_.model_types.end() || type->second == DType::kF32) continue;
    specs[i].dtype = type->second;
    rounded.push_back(i);
  }
  SLUICE_RETURN_IF_ERROR(WriteModelFiles(dir, options_.source,
                                         RoundedSource(&parameters, std::move(specs)), written,
                                         options_.max_shard_bytes));
  if (rounded.empty()) return absl::OkStatus();
  return WriteTensors(dir, kMasters, parameters, rounded, written);
}

absl::Status CheckpointStore::FindWriters(const std::string& dir, const TensorSource& tensors) {
  writers_ = Writers();
  const auto* const parted = dynamic_cast<const PartedSource*>(&tensors);
  if (parted == nullptr) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(writers_.why, parted->FindObstacle(dir));
  if (writers_.why.empty()) writers_.ranks = parted->ranks();
  return absl::OkStatus();
}

absl::Status CheckpointStore::WriteTensors(const std::string& dir, const char* stem,
                                           const TensorSource& tensors,
                                           absl::Span<const size_t> indices,
                                           WrittenFiles* written) const {
  const auto* const parted = dynamic_cast<const PartedSource*>(&tensors);
  if (parted != nullptr && writers_.ranks > 1)
    return parted->WriteParts(dir, stem, indices, options_.max_shard_bytes, written);
  return WriteShards(dir, stem, tensors, indices, {}, options_.max_shard_bytes, written);
}

absl::Status CheckpointStore::WriteFiles(const std::string& dir, CheckpointContents contents) {
  SLUICE_RETURN_IF_ERROR(FindWriters(dir, *contents.optimizer));
  StateFile file{contents.state, {}};
  SLUICE_ASSIGN_OR_RETURN(
      file.files[kLineage],
      CopyLineage(contents.previous, contents.lineage_tail, PathIn(dir, kLineage)));
  SLUICE_RETURN_IF_ERROR(WriteModel(dir, *contents.model, &file.files));
  contents.model.reset();
  // Each source is dropped when it is written, so that it keeps no memory any longer.
  const std::pair<const char*, std::shared_ptr<const TensorSource>*> parts[] = {
      {kOptimizer, &contents.optimizer},
      {kCritic, &contents.critic},
      {kCriticMoments, &contents.critic_moments}};
  for (const auto& [stem, source] : parts) {
    if (*source == nullptr) continue;
    SLUICE_RETURN_IF_ERROR(WriteTensors(dir, stem, **source, {}, &file.files));
    source->reset();
  }
  const absl::string_view cursor = contents.cursor;
  SLUICE_RETURN_IF_ERROR(
      WriteFileAtomic(PathIn(dir, kCursor), absl::MakeConstSpan(&cursor, 1), &file.files[kCursor]));
  return WriteFileAtomic(PathIn(dir, kState), StateToJson(file).dump(2) + "\n");
}

absl::Status CheckpointStore::Prepare() const {
  const std::string probe = PathIn(options_.dir, ".probe.tmp");
  absl::Status status = MakeDirs(options_.dir);
  if (status.ok()) status = WriteFileAtomic(probe, "");
  if (status.ok()) status = RemoveTree(probe);
  if (!status.ok())
    return Annotate(status, "checkpoint.dir cannot be written; set it to another folder");

  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDir(options_.dir));
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, ".step-") || !absl::EndsWith(name, ".tmp")) continue;
    SLUICE_ASSIGN_OR_RETURN(const bool recovered, RecoverOld(options_.dir, name));
    if (recovered) continue;
    // Another rank of an earlier incarnation may still write to it. No later one uses its name.
    const absl::Status removed = RemoveTree(PathIn(options_.dir, name));
    if (!removed.ok()) {
      log::Warning("checkpoint_leftover",
                   {{"path", PathIn(options_.dir, name)}, {"error", removed}});
    }
  }
  return absl::OkStatus();
}

// Refuses a folder with checkpoints of another job or a newer build, because going on silently from
// an older one of this job would lose work.
absl::Status CheckpointStore::CheckOwners(const std::vector<CheckpointEntry>& entries) const {
  for (const CheckpointEntry& entry : entries) {
    if (absl::IsFailedPrecondition(entry.status)) return entry.status;
    if (!entry.status.ok() || options_.job.empty() || entry.state.job == options_.job) continue;
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "OTHER_JOB",
                      .hint = absl::StrCat("give this job another checkpoint.dir, or move ",
                                           entry.path, " away; a job with model.path: ", entry.path,
                                           " starts from its weights")},
                     absl::StrCat(entry.path, " is a checkpoint of job ", entry.state.job,
                                  ", and this is job ", options_.job));
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::CheckMayWrite(const TrainState& state) const {
  const std::vector<CheckpointEntry> entries = List();
  SLUICE_RETURN_IF_ERROR(CheckOwners(entries));
  for (const CheckpointEntry& entry : entries) {
    if (!entry.status.ok() || entry.state.version.incarnation <= state.version.incarnation)
      continue;
    return Error(
        absl::StatusCode::kAborted, "FENCED",
        absl::StrCat(entry.path, " was written by incarnation ", entry.state.version.incarnation,
                     ", which has replaced this one, ", state.version.incarnation));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointStore::Write(CheckpointContents contents) {
  const TrainState state = contents.state;
  const std::optional<int64_t> promoted = contents.promoted;
  const PolicyVersion version = state.version;
  const std::string path = absl::StrCat(options_.dir, "/step-", version.number);

  // A trainer that has been replaced may still be writing, so the temporary folder's name has the
  // incarnation.
  const std::string temporary =
      absl::StrCat(options_.dir, "/.step-", version.number, ".", version.incarnation, ".tmp");
  SLUICE_RETURN_IF_ERROR(MakeDirs(options_.dir));
  SLUICE_RETURN_IF_ERROR(RemoveTree(temporary));
  SLUICE_RETURN_IF_ERROR(MakeDirs(temporary));

  absl::Status status = WriteFiles(temporary, std::move(contents));
  if (status.ok()) status = SyncDir(temporary);
  if (status.ok()) status = CheckMayWrite(state);
  if (!status.ok()) {
    (void)RemoveTree(temporary);
    return Annotate(status, absl::StrCat("writing checkpoint ", path));
  }

  SLUICE_FAILPOINT_STATUS("trainer.checkpoint.before_rename");
  SLUICE_RETURN_IF_ERROR(ExchangeFolders(temporary, path));
  SLUICE_RETURN_IF_ERROR(SyncDir(options_.dir));
  (void)RemoveTree(temporary);  // The old checkpoint of this number, if there was one.
  damaged_.erase(path);
  Prune(path, promoted);
  return path;
}

std::vector<CheckpointEntry> CheckpointStore::List() const {
  const absl::StatusOr<std::vector<std::string>> names = ListDir(options_.dir);
  if (!names.ok()) return {};
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : *names) {
    int64_t number;
    if (!absl::StartsWith(name, "step-") || !absl::SimpleAtoi(name.substr(5), &number)) continue;
    CheckpointEntry& entry =
        entries.emplace_back(CheckpointEntry{PathIn(options_.dir, name), {}, {}});
    const absl::StatusOr<StateFile> file = ReadStateFile(entry.path);
    entry.status = file.status();
    if (file.ok()) entry.state = file->state;
  }

  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::tuple(a.status.ok(), a.state.version, a.path) <
           std::tuple(b.status.ok(), b.state.version, b.path);
  });
  return entries;
}

absl::StatusOr<std::optional<Checkpoint>> CheckpointStore::ReadNewest(
    std::vector<std::string>* damaged,
    const std::function<bool(const PolicyVersion&)>& is_on_branch) {
  const std::vector<CheckpointEntry> entries = List();
  SLUICE_RETURN_IF_ERROR(CheckOwners(entries));

  const auto note_damage = [&](const std::string& path, const absl::Status& status) {
    damaged_.insert(path);
    if (damaged != nullptr) damaged->push_back(std::string(status.message()));
  };
  for (const CheckpointEntry& entry : entries) {
    if (!entry.status.ok()) note_damage(entry.path, entry.status);
  }
  for (auto entry = entries.rbegin(); entry != entries.rend() && entry->status.ok(); ++entry) {
    if (is_on_branch && !is_on_branch(entry->state.version)) continue;
    absl::StatusOr<Checkpoint> checkpoint = ReadCheckpoint(entry->path);
    if (checkpoint.ok()) return std::optional<Checkpoint>(*std::move(checkpoint));
    if (!absl::IsDataLoss(checkpoint.status())) return checkpoint.status();
    note_damage(entry->path, checkpoint.status());
  }
  return std::optional<Checkpoint>();
}

absl::StatusOr<Checkpoint> CheckpointStore::ReadVersion(int64_t number) const {
  const std::string path = absl::StrCat(options_.dir, "/step-", number);
  if (!PathExists(path)) return absl::NotFoundError(absl::StrCat("there is no checkpoint ", path));
  SLUICE_RETURN_IF_ERROR(CheckOwners(List()));
  return ReadCheckpoint(path);
}

// Damaged checkpoints are neither counted nor removed: they must not push out one that verifies,
// and a person may want to look at them.
void CheckpointStore::Prune(const std::string& written, std::optional<int64_t> promoted) const {
  std::vector<CheckpointEntry> whole, given_up;
  for (CheckpointEntry& entry : List()) {
    if (!entry.status.ok() || damaged_.contains(entry.path)) continue;
    const bool on_branch = !options_.is_on_branch || options_.is_on_branch(entry.state.version);
    (on_branch ? whole : given_up).push_back(std::move(entry));
  }
  const std::set<std::string> linked = LinkedCheckpoints(options_.dir);
  const auto covers = std::find_if(
      whole.rbegin(), whole.rend(),
      [promoted](const CheckpointEntry& entry) { return entry.state.version.number <= promoted; });
  const std::string covering = covers == whole.rend() ? "" : covers->path;
  const size_t keep_last = static_cast<size_t>(std::max(1, options_.keep_last));
  for (size_t i = 0; i + keep_last < whole.size(); ++i) {
    const int64_t number = whole[i].state.version.number;
    const bool for_good = options_.keep_every_steps > 0 && number % options_.keep_every_steps == 0;
    const bool named = linked.contains(absl::StrCat("step-", number));
    const bool needed = whole[i].path == written || whole[i].path == covering;
    if (!for_good && !named && !needed) (void)RemoveTree(whole[i].path);
  }
  // No run goes on from these, so newer ones push them out first.
  if (whole.size() < keep_last) return;
  for (const CheckpointEntry& entry : given_up) {
    const bool named = linked.contains(absl::StrCat("step-", entry.state.version.number));
    if (!named && entry.path != written) (void)RemoveTree(entry.path);
  }
}

}  // namespace sluice::trainer
