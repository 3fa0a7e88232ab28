#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/weights/publisher.h"

// The folder of a job's weights on a disk that trainer and rollouts see (`weights.dir`):
//
//   INCARNATION/objects/HEX   a manifest or chunk, named by its SHA-256
//   INCARNATION/latest        which version is the newest, and which manifests are complete
//
// Each incarnation of the trainer writes below its own number alone, removes nothing of a higher
// number, and removes lower ones when it has a `latest`; readers take the highest number that has
// one. So what a trainer that was replaced does late can neither lower the newest version nor harm
// the objects of the new trainer, without any lock, which network disks do not all have.
//
// Each file appears complete, by a rename. `latest` is renamed into its place when all objects of
// the manifests that it lists are there, and before those that it no longer lists are removed. So
// whatever moment a writer dies at, `latest` is the old or the new one, and all that it lists is
// there. A disk may lose or change files behind that: readers check each by its SHA-256.
namespace sluice {

namespace weights::v1 {
class FolderContents;
}

// The folder of one job below the one that the job file names.
std::string WeightFolderOf(absl::string_view dir, absl::string_view job_name,
                           absl::string_view job);
// The file of an object.
std::string WeightObjectPath(absl::string_view folder, int64_t incarnation, absl::string_view id);

// Reads the newest `latest`.
// NOT_FOUND: there is none yet.
// DATA_LOSS: that of the highest incarnation is damaged, or of another job.
// Other errors are those of file.h.
absl::StatusOr<weights::v1::FolderContents> ReadWeightFolder(const std::string& folder,
                                                             absl::string_view job);

// Writes what a publisher keeps to the folder. Not thread-safe.
class WeightFolderWriter {
 public:
  WeightFolderWriter(std::string folder, std::string job, int64_t incarnation)
      : folder_(std::move(folder)), job_(std::move(job)), incarnation_(incarnation) {}

  // Writes the objects that are not in the folder yet, then `latest`, and removes the objects that
  // are kept no longer and the folders of lower incarnations. After an error what was there can
  // still be read, and the next call goes on. It may block as long as the disk does.
  // ABORTED FENCED: a higher incarnation writes here.
  // ABORTED LOST_RACE: the version is below the one in the folder.
  // Other errors are those of file.h.
  absl::Status Write(const WeightPublisher::Snapshot& kept);

 private:
  absl::Status CheckNotFenced() const;
  // Removes the objects of `present_` that neither `latest` in the folder nor `kept` needs.
  absl::Status RemoveUnused(const WeightPublisher::Snapshot& kept);
  absl::Status RemoveOlderIncarnations() const;

  const std::string folder_, job_;
  const int64_t incarnation_;
  PolicyVersion latest_;            // In the folder, of this incarnation.
  std::set<std::string> present_;   // Ids of objects that this writer has written.
  std::set<std::string> promised_;  // Those of them that `latest` in the folder needs.
};

}  // namespace sluice
