#include "common/checkpoint/shards.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxIndexBytes = 16 << 20;
constexpr int kMaxIndexDepth = 32;

std::string SingleFile(absl::string_view stem) { return absl::StrCat(stem, ".safetensors"); }
std::string IndexFile(absl::string_view stem) {
  return absl::StrCat(stem, ".safetensors.index.json");
}

// A file and the names of the tensors that it must hold. `names` is unset if there is no index:
// then any names are accepted here.
struct Shard {
  std::string path;
  std::optional<std::vector<std::string>> names;  // Sorted.
};

absl::StatusOr<std::vector<Shard>> FindShards(const std::string& dir, absl::string_view stem) {
  const std::string single = absl::StrCat(dir, "/", SingleFile(stem));
  if (PathExists(single)) return std::vector<Shard>{{single, std::nullopt}};
  const std::string path = absl::StrCat(dir, "/", IndexFile(stem));
  if (!PathExists(path)) {
    return absl::NotFoundError(
        absl::StrCat(dir, ": has neither ", SingleFile(stem), " nor ", IndexFile(stem)));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, path, kMaxIndexDepth));
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no weight_map"));
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string())
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", Printable(name), " has no file name in weight_map"));

    // The name comes from an untrusted file and must not lead out of the directory.
    const std::string plain = file.get<std::string>();
    if (absl::StrContains(plain, '/') || absl::StrContains(plain, '\0') ||
        absl::StartsWith(plain, ".") || !absl::EndsWith(plain, ".safetensors")) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": \"", Printable(plain), "\" is not a plain name of a .safetensors file"));
    }
    files[plain].push_back(name);
  }

  std::vector<Shard> shards;
  for (auto& [file, names] : files) {
    std::sort(names.begin(), names.end());
    shards.push_back({absl::StrCat(dir, "/", file), std::move(names)});
  }
  return shards;
}

// Checks that a file holds exactly the tensors that the index places there.
absl::Status CheckIndex(const Shard& shard, absl::string_view stem, const SafetensorsFile& file) {
  if (!shard.names.has_value()) return absl::OkStatus();
  std::vector<std::string> held;
  for (const auto& entry : file.entries()) held.push_back(entry.spec.name);
  std::sort(held.begin(), held.end());
  for (const std::string& name : *shard.names) {
    if (!std::binary_search(held.begin(), held.end(), name)) {
      return absl::InvalidArgumentError(absl::StrCat(shard.path, ": lacks tensor ", Printable(name),
                                                     ", which ", IndexFile(stem), " places there"));
    }
  }
  for (const std::string& name : held) {
    if (!std::binary_search(shard.names->begin(), shard.names->end(), name)) {
      return absl::InvalidArgumentError(absl::StrCat(shard.path, ": holds tensor ", Printable(name),
                                                     ", which ", IndexFile(stem),
                                                     " does not place there"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteShards(const std::string& dir, absl::string_view stem,
                         const TensorSource& tensors, absl::Span<const size_t> indices,
                         const std::map<std::string, std::string>& metadata, int64_t max_bytes,
                         WrittenFiles* written) {
  const absl::Span<const TensorSpec> specs = tensors.specs();
  std::vector<size_t> all(indices.begin(), indices.end());
  if (all.empty()) {
    all.resize(specs.size());
    std::iota(all.begin(), all.end(), 0);
  }
  std::vector<std::vector<size_t>> shards(1);
  int64_t total = 0, in_shard = 0;
  for (const size_t i : all) {
    SLUICE_ASSIGN_OR_RETURN(const int64_t bytes, NumBytes(specs[i]));
    if (in_shard > 0 && in_shard + bytes > max_bytes) shards.emplace_back(), in_shard = 0;
    shards.back().push_back(i);
    in_shard += bytes, total += bytes;
  }

  if (shards.size() == 1) {
    const std::string name = SingleFile(stem);
    return WriteSafetensors(absl::StrCat(dir, "/", name), tensors, shards[0], metadata,
                            &(*written)[name]);
  }
  Json map = Json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name =
        absl::StrFormat("%s-%05d-of-%05d.safetensors", stem, s + 1, shards.size());
    SLUICE_RETURN_IF_ERROR(WriteSafetensors(absl::StrCat(dir, "/", name), tensors, shards[s],
                                            metadata, &(*written)[name]));
    for (const size_t i : shards[s]) map[specs[i].name] = name;
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  const std::string name = IndexFile(stem), bytes = index.dump(2) + "\n";
  const absl::string_view text = bytes;
  return WriteFileAtomic(absl::StrCat(dir, "/", name), absl::MakeConstSpan(&text, 1),
                         &(*written)[name]);
}

bool HasShards(const std::string& dir, absl::string_view stem) {
  return PathExists(absl::StrCat(dir, "/", SingleFile(stem))) ||
         PathExists(absl::StrCat(dir, "/", IndexFile(stem)));
}

absl::StatusOr<std::vector<SafetensorsFile>> OpenShards(const std::string& dir,
                                                        absl::string_view stem) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Shard> shards, FindShards(dir, stem));
  std::vector<SafetensorsFile> files;
  for (const Shard& shard : shards) {
    SLUICE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(shard.path));
    SLUICE_RETURN_IF_ERROR(CheckIndex(shard, stem, file));
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace sluice
