#include "common/weights/weight_folder.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/weights/convert.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr size_t kDigestBytes = 32;
constexpr uint64_t kMaxLatestBytes = 16 << 20;

std::string IncarnationPath(absl::string_view folder, int64_t incarnation) {
  return absl::StrCat(folder, "/", incarnation);
}

// The incarnations that have written to the folder, in rising order. None if it does not exist.
absl::StatusOr<std::vector<int64_t>> ListIncarnations(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = ListDir(folder);
  if (absl::IsNotFound(names.status())) return std::vector<int64_t>();
  SLUICE_RETURN_IF_ERROR(names.status());
  std::vector<int64_t> incarnations;
  for (const std::string& name : *names) {
    int64_t incarnation;
    if (absl::SimpleAtoi(name, &incarnation) && absl::StrCat(incarnation) == name)
      incarnations.push_back(incarnation);
  }
  std::sort(incarnations.begin(), incarnations.end());
  return incarnations;
}

absl::StatusOr<weights::v1::FolderContents> ReadLatest(const std::string& path,
                                                       absl::string_view job) {
  SLUICE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxLatestBytes));
  const absl::string_view digest = absl::string_view(bytes).substr(0, kDigestBytes),
                          body = absl::string_view(bytes).substr(digest.size());
  weights::v1::FolderContents contents;
  if (Sha256(body) != digest ||
      !contents.ParseFromArray(body.data(), static_cast<int>(body.size())))
    return absl::DataLossError(absl::StrCat(path, " of ", bytes.size(), " bytes is damaged"));
  if (contents.job() != job) {
    return absl::DataLossError(
        absl::StrCat(path, " has the weights of job ", contents.job(), ", and this is ", job));
  }
  return contents;
}

}  // namespace

std::string WeightFolderOf(absl::string_view dir, absl::string_view job_name,
                           absl::string_view job) {
  return absl::StrCat(dir, "/", job_name, "-", job.substr(0, 8));
}

std::string WeightObjectPath(absl::string_view folder, int64_t incarnation, absl::string_view id) {
  return absl::StrCat(IncarnationPath(folder, incarnation), "/objects/", ToHex(id));
}

absl::StatusOr<weights::v1::FolderContents> ReadWeightFolder(const std::string& folder,
                                                             absl::string_view job) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int64_t> incarnations, ListIncarnations(folder));
  // A trainer that has just begun has no `latest` yet; that of the one before it still counts.
  for (auto it = incarnations.rbegin(); it != incarnations.rend(); ++it) {
    auto contents = ReadLatest(IncarnationPath(folder, *it) + "/latest", job);
    // What a damaged one has replaced must not be believed any more.
    if (!absl::IsNotFound(contents.status())) return contents;
  }
  return absl::NotFoundError(absl::StrCat(folder, " has no version yet"));
}

absl::Status WeightFolderWriter::Write(const WeightPublisher::Snapshot& kept) {
  SLUICE_RETURN_IF_ERROR(CheckNotFenced());
  if (kept.newest.version < latest_) {
    return Error(absl::StatusCode::kAborted, "LOST_RACE",
                 absl::StrCat("version ", kept.newest.version.str(), " is below ", latest_.str(),
                              ", which ", folder_, " has already"));
  }
  const std::string own = IncarnationPath(folder_, incarnation_);
  SLUICE_RETURN_IF_ERROR(MakeDirs(own + "/objects"));

  // What an earlier call wrote before it failed takes room that this version may need.
  SLUICE_RETURN_IF_ERROR(RemoveUnused(kept));
  for (const auto& [id, object] : kept.objects) {
    if (present_.contains(id)) continue;
    SLUICE_FAILPOINT_STATUS("weights.dir.object");
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(WeightObjectPath(folder_, incarnation_, id), *object));
    present_.insert(id);
  }

  weights::v1::FolderContents contents;
  contents.set_job(job_);
  *contents.mutable_latest() = ToProto(kept.newest);
  for (const WeightEdge& edge : kept.edges) *contents.add_nodes() = ToProto(edge);
  const std::string body = contents.SerializeAsString();
  SLUICE_FAILPOINT_STATUS("weights.dir.latest");
  SLUICE_RETURN_IF_ERROR(WriteFileAtomic(own + "/latest", Sha256(body) + body));
  latest_ = kept.newest.version;
  promised_.clear();
  for (const auto& [id, unused] : kept.objects) promised_.insert(id);

  SLUICE_FAILPOINT_STATUS("weights.dir.free");
  SLUICE_RETURN_IF_ERROR(RemoveUnused(kept));
  return RemoveOlderIncarnations();
}

absl::Status WeightFolderWriter::CheckNotFenced() const {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int64_t> incarnations, ListIncarnations(folder_));
  if (incarnations.empty() || incarnations.back() <= incarnation_) return absl::OkStatus();
  return Error(absl::StatusCode::kAborted, "FENCED",
               absl::StrCat("incarnation ", incarnations.back(), " writes to ", folder_,
                            " and has replaced this one, ", incarnation_));
}

absl::Status WeightFolderWriter::RemoveUnused(const WeightPublisher::Snapshot& kept) {
  for (auto it = present_.begin(); it != present_.end();) {
    if (promised_.contains(*it) || kept.objects.contains(*it)) {
      ++it;
      continue;
    }
    SLUICE_RETURN_IF_ERROR(RemoveTree(WeightObjectPath(folder_, incarnation_, *it)));
    it = present_.erase(it);
  }
  return absl::OkStatus();
}

absl::Status WeightFolderWriter::RemoveOlderIncarnations() const {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int64_t> incarnations, ListIncarnations(folder_));
  for (const int64_t incarnation : incarnations) {
    if (incarnation < incarnation_)
      SLUICE_RETURN_IF_ERROR(RemoveTree(IncarnationPath(folder_, incarnation)));
  }
  return absl::OkStatus();
}

}  // namespace sluice
