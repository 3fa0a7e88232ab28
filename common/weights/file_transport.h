#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/weights/disk_worker.h"
#include "common/weights/transport.h"

namespace sluice {

namespace weights::v1 {
class FolderContents;
}

// Reads objects from the folder that the trainer writes (weight_folder.h). A disk that hangs is
// left like any silent holder.
class FileTransport : public Transport {
 public:
  // Reads a file of at most `limit` bytes.
  using Read = std::function<absl::StatusOr<std::string>(const std::string& path, uint64_t limit)>;
  // `job`: 32 hex digits.
  FileTransport(std::string folder, std::string job);
  FileTransport(std::string folder, std::string job, Read read);

  const TransportCaps& caps() const override { return kFileCaps; }
  FetchEnd Fetch(const FetchTerms& terms, WantedObjects* wanted) override;
  absl::Status List(weights::v1::ListResponse* list) override;
  // Reads what is the newest in the folder, and what is listed. Errors are those of
  // ReadWeightFolder() and DEADLINE_EXCEEDED. Thread-safe.
  absl::StatusOr<weights::v1::FolderContents> ReadContents();

 private:
  const std::string folder_, job_;
  const Read read_;
  DiskWorker disk_{"sluice-folder"};
};

}  // namespace sluice
