#include "common/weights/file_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/weights/weight_folder.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

// A chunk has at most this many bytes, by which the time to wait for it is judged.
constexpr uint64_t kUsualBytes = 4 << 20;
constexpr absl::Duration kListLimit = absl::Seconds(2);

}  // namespace

FileTransport::FileTransport(std::string folder, std::string job)
    : FileTransport(std::move(folder), std::move(job), ReadFile) {}
FileTransport::FileTransport(std::string folder, std::string job, Read read)
    : folder_(std::move(folder)), job_(std::move(job)), read_(std::move(read)) {}

FetchEnd FileTransport::Fetch(const FetchTerms& terms, WantedObjects* wanted) {
  for (size_t i = 0; i < wanted->ids().size(); ++i) {
    const auto bytes = std::make_shared<absl::StatusOr<std::string>>();
    const std::string path = WeightObjectPath(folder_, terms.version.incarnation, wanted->ids()[i]);
    absl::Status ended =
        disk_.Run([read = read_, path, bytes] { *bytes = read(path, kMaxObjectBytes); },
                  terms.patience * terms.history->SilenceLimit(kUsualBytes), terms.cancel);
    if (absl::IsCancelled(ended)) return {std::move(ended), std::nullopt};
    if (!ended.ok()) return {Annotate(ended, absl::StrCat("reading ", path)), HolderFault::kSilent};

    const absl::Status& read = bytes->status();
    if (absl::IsNotFound(read)) {
      wanted->AddMissing(i);
      continue;
    }
    // No object is so large.
    if (absl::IsResourceExhausted(read))
      return {absl::DataLossError(read.message()), HolderFault::kLied};
    if (!read.ok()) return {absl::UnavailableError(read.message()), HolderFault::kGone};
    wanted->AddReceived((*bytes)->size());
    if (absl::Status taken = wanted->Take(i, **bytes); !taken.ok()) {
      if (!wanted->taker_failed()) taken = Annotate(taken, path);
      return {std::move(taken), HolderFault::kLied};
    }
  }
  return {wanted->CheckMissing(terms.name), std::nullopt};
}

absl::StatusOr<weights::v1::FolderContents> FileTransport::ReadContents() {
  const auto contents = std::make_shared<absl::StatusOr<weights::v1::FolderContents>>();
  SLUICE_RETURN_IF_ERROR(disk_.Run(
      [folder = folder_, job = job_, contents] { *contents = ReadWeightFolder(folder, job); },
      kListLimit));
  return *std::move(contents);
}

absl::Status FileTransport::List(weights::v1::ListResponse* list) {
  const absl::StatusOr<weights::v1::FolderContents> contents = ReadContents();
  if (!contents.ok()) return contents.status();
  *list->mutable_nodes() = contents->nodes();
  return absl::OkStatus();
}

}  // namespace sluice
