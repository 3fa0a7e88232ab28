#include "services/trainer/core/parts.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "nlohmann/json.hpp"

namespace sluice::trainer {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr int kMaxIndexDepth = 5;

std::string RankStem(absl::string_view stem, size_t rank) {
  return absl::StrCat(stem, "-rank", rank);
}
std::string IndexName(absl::string_view stem) { return absl::StrCat(stem, ".parts.json"); }

// Returns `indices`, or those of all tensors if there are none.
std::vector<size_t> AllOf(const PartedTensors& tensors, absl::Span<const size_t> indices) {
  std::vector<size_t> all(indices.begin(), indices.end());
  if (!all.empty()) return all;
  all.resize(tensors.specs.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The part of one rank as tensors of one dimension.
class RankSource : public TensorSource {
 public:
  RankSource(const PartedTensors& tensors, size_t rank, absl::Span<const size_t> indices,
             const ReadOwn& read)
      : read_(read) {
    for (const size_t i : indices) {
      const int64_t first = tensors.begins[i][rank], count = tensors.begins[i][rank + 1] - first;
      if (count == 0) continue;
      const TensorSpec& spec = tensors.specs[i];
      specs_.push_back({.name = spec.name, .dtype = spec.dtype, .shape = {count}});
      places_.push_back({i, first});
    }
  }

  absl::Span<const TensorSpec> specs() const override { return specs_; }
  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const override {
    SLUICE_FAILPOINT_STATUS("trainer.checkpoint.part.piece");
    return read_(places_[i].tensor, places_[i].first + first, count, to);
  }

 private:
  struct Place {
    size_t tensor;
    int64_t first;  // Element of the whole tensor.
  };
  const ReadOwn& read_;
  std::vector<TensorSpec> specs_;
  std::vector<Place> places_;
};

// Whole tensors from the files of the ranks.
class JoinedSource : public TensorSource {
 public:
  JoinedSource(PartedTensors tensors, std::vector<std::unique_ptr<FileSource>> files)
      : tensors_(std::move(tensors)), files_(std::move(files)) {}

  // Finds each part in the files of its rank.
  absl::Status Find(const std::string& path) {
    std::vector<size_t> found(files_.size());
    for (size_t i = 0; i < tensors_.specs.size(); ++i) {
      const TensorSpec& spec = tensors_.specs[i];
      const std::vector<int64_t>& begins = tensors_.begins[i];
      std::vector<size_t>& places = places_.emplace_back(files_.size());
      for (size_t rank = 0; rank < files_.size(); ++rank) {
        const int64_t count = begins[rank + 1] - begins[rank];
        if (count == 0) continue;
        // Both are sorted by name.
        const absl::Span<const TensorSpec> held = files_[rank]->specs();
        const size_t at = found[rank]++;
        if (at >= held.size() || held[at].name != spec.name || held[at].dtype != spec.dtype ||
            held[at].shape != std::vector<int64_t>{count}) {
          return absl::InvalidArgumentError(
              absl::StrCat(path, ": the files of rank ", rank, " do not hold ", count,
                           " elements of ", Printable(spec.name), " as ", DTypeName(spec.dtype)));
        }
        places[rank] = at;
      }
    }
    for (size_t rank = 0; rank < files_.size(); ++rank) {
      if (found[rank] == files_[rank]->specs().size()) continue;
      return absl::InvalidArgumentError(absl::StrCat(path, ": the files of rank ", rank, " hold ",
                                                     files_[rank]->specs().size(),
                                                     " tensors, wanted are ", found[rank]));
    }
    return absl::OkStatus();
  }

  absl::Span<const TensorSpec> specs() const override { return tensors_.specs; }
  absl::Status Read(size_t i, int64_t first, int64_t count, void* to) const override {
    const std::vector<int64_t>& begins = tensors_.begins[i];
    const int64_t size = static_cast<int64_t>(DTypeBytes(tensors_.specs[i].dtype));
    for (size_t rank = 0; rank < files_.size(); ++rank) {
      const int64_t begin = std::max(first, begins[rank]),
                    end = std::min(first + count, begins[rank + 1]);
      if (begin >= end) continue;
      SLUICE_RETURN_IF_ERROR(files_[rank]->Read(places_[i][rank], begin - begins[rank], end - begin,
                                                static_cast<char*>(to) + (begin - first) * size));
    }
    return absl::OkStatus();
  }

 private:
  const PartedTensors tensors_;
  const std::vector<std::unique_ptr<FileSource>> files_;  // [rank]
  std::vector<std::vector<size_t>> places_;               // [tensor][rank]
};

// Reads one tensor of the index. `ranks` is the number of ranks.
absl::Status AddTensor(const Json& json, size_t ranks, PartedTensors* tensors) {
  const std::string name = json.at("name").get<std::string>();
  if (!tensors->specs.empty() && name <= tensors->specs.back().name)
    return absl::InvalidArgumentError(absl::StrCat(Printable(name), " is not in rising order"));
  SLUICE_ASSIGN_OR_RETURN(const DType dtype, DTypeFromName(json.at("dtype").get<std::string>()));
  TensorSpec spec{
      .name = name, .dtype = dtype, .shape = json.at("shape").get<std::vector<int64_t>>()};
  const std::vector<int64_t> begins = json.at("begins").get<std::vector<int64_t>>();
  SLUICE_ASSIGN_OR_RETURN(const int64_t elements, NumElements(spec.shape));
  if (begins.size() != ranks + 1 || begins.front() != 0 || begins.back() != elements ||
      !std::is_sorted(begins.begin(), begins.end())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the parts of ", Printable(name), " do not make the ", elements, " elements of its shape"));
  }
  tensors->specs.push_back(std::move(spec));
  tensors->begins.push_back(begins);
  return absl::OkStatus();
}

absl::StatusOr<PartedTensors> ReadIndex(const std::string& path, size_t* ranks) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxIndexBytes));
  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, path, kMaxIndexDepth));
  PartedTensors tensors;
  try {
    *ranks = json.at("ranks").get<size_t>();
    for (const Json& tensor : json.at("tensors"))
      SLUICE_RETURN_IF_ERROR(Annotate(AddTensor(tensor, *ranks, &tensors), path));
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", e.what()));
  }
  return tensors;
}

}  // namespace

absl::StatusOr<WrittenFiles> WriteRankFiles(const std::string& dir, absl::string_view stem,
                                            const PartedTensors& tensors, size_t rank,
                                            absl::Span<const size_t> indices, int64_t max_bytes,
                                            const ReadOwn& read) {
  SLUICE_FAILPOINT_STATUS("trainer.checkpoint.part.before");
  const RankSource source(tensors, rank, AllOf(tensors, indices), read);
  WrittenFiles written;
  SLUICE_RETURN_IF_ERROR(
      WriteShards(dir, RankStem(stem, rank), source, {}, {}, max_bytes, &written));
  SLUICE_FAILPOINT_STATUS("trainer.checkpoint.part.after");
  return written;
}

std::string EncodeRankFiles(const absl::StatusOr<WrittenFiles>& files) {
  if (!files.ok()) {
    const Json error = {{"code", files.status().raw_code()},
                        {"error", std::string(files.status().message())}};
    return error.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  Json json = {{"files", Json::object()}};
  for (const auto& [name, digest] : *files)
    json["files"][name] = {{"bytes", digest.bytes}, {"sha256", ToHex(digest.sha256)}};
  return json.dump();
}

absl::StatusOr<WrittenFiles> DecodeRankFiles(const std::string& dir, absl::string_view stem,
                                             int rank, absl::string_view text) {
  const std::string who = absl::StrCat("rank ", rank);
  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseJson(std::string(text), who, kMaxIndexDepth));
  WrittenFiles files;
  try {
    if (json.contains("error")) {
      return absl::Status(static_cast<absl::StatusCode>(json.at("code").get<int>()),
                          absl::StrCat(who, ": ", json.at("error").get<std::string>()));
    }
    for (const auto& [name, entry] : json.at("files").items()) {
      FileDigest digest{.bytes = entry.at("bytes").get<uint64_t>(), .sha256 = ""};
      SLUICE_ASSIGN_OR_RETURN(digest.sha256, FromHex(entry.at("sha256").get<std::string>()));
      if (absl::StrContains(name, '/') || !absl::StartsWith(name, RankStem(stem, rank))) {
        return absl::InternalError(
            absl::StrCat(who, " has written \"", Printable(name), "\", which is not its file"));
      }
      std::error_code error;
      const uint64_t size = std::filesystem::file_size(absl::StrCat(dir, "/", name), error);
      if (error || size != digest.bytes) {
        return absl::UnavailableError(
            absl::StrCat(who, " has written ", digest.bytes, " bytes to ", name, ", but here ",
                         error ? error.message() : absl::StrCat("it has ", size)));
      }
      files[name] = std::move(digest);
    }
  } catch (const Json::exception& e) {
    return absl::InternalError(absl::StrCat(who, ": ", e.what()));
  }
  return files;
}

absl::Status WritePartsIndex(const std::string& dir, absl::string_view stem,
                             const PartedTensors& tensors, absl::Span<const size_t> indices,
                             WrittenFiles* written) {
  // A list: an object with many members takes long to parse.
  Json list = Json::array();
  for (const size_t i : AllOf(tensors, indices)) {
    const TensorSpec& spec = tensors.specs[i];
    list.push_back({{"name", spec.name},
                    {"dtype", std::string(DTypeName(spec.dtype))},
                    {"shape", spec.shape},
                    {"begins", tensors.begins[i]}});
  }
  const Json index = {{"ranks", tensors.ranks()}, {"tensors", std::move(list)}};
  const std::string name = IndexName(stem), bytes = index.dump() + "\n";
  const absl::string_view text = bytes;
  return WriteFileAtomic(absl::StrCat(dir, "/", name), absl::MakeConstSpan(&text, 1),
                         &(*written)[name]);
}

bool HasParts(const std::string& dir, absl::string_view stem) {
  return PathExists(absl::StrCat(dir, "/", IndexName(stem)));
}

absl::StatusOr<std::shared_ptr<const TensorSource>> OpenTensors(const std::string& dir,
                                                                absl::string_view stem) {
  if (!HasParts(dir, stem)) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<SafetensorsFile> files, OpenShards(dir, stem));
    return std::make_shared<FileSource>(std::move(files));
  }
  const std::string path = absl::StrCat(dir, "/", IndexName(stem));
  size_t ranks = 0;
  SLUICE_ASSIGN_OR_RETURN(PartedTensors tensors, ReadIndex(path, &ranks));
  std::vector<std::unique_ptr<FileSource>> sources;
  for (size_t rank = 0; rank < ranks; ++rank) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<SafetensorsFile> files,
                            OpenShards(dir, RankStem(stem, rank)));
    sources.push_back(std::make_unique<FileSource>(std::move(files)));
  }
  auto joined = std::make_shared<JoinedSource>(std::move(tensors), std::move(sources));
  SLUICE_RETURN_IF_ERROR(joined->Find(path));
  return joined;
}

}  // namespace sluice::trainer
