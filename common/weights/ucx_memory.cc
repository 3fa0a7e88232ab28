#include "common/weights/ucx_memory.h"

#include "common/base/status.h"
#include "common/weights/ucx_stage.h"

namespace sluice {

absl::StatusOr<absl::string_view> UcxMemory::Read(const UcxPlace& place, absl::Duration deadline,
                                                  rpc::Cancel* cancel) {
  if (reader_ == nullptr || is_broken_ || reader_->worker() != place.worker) {
    reader_.reset();
    SLUICE_ASSIGN_OR_RETURN(reader_,
                            UcxReader::Connect(devices_, place.worker, UcxStage::kMostBytes));
    is_broken_ = false;
  }
  const int64_t callback = cancel->AddCallback([this] { reader_->Interrupt(); });
  absl::StatusOr<absl::string_view> read = reader_->Read(place, deadline);
  cancel->RemoveCallback(callback);
  is_broken_ = !read.ok() || cancel->triggered();
  return read;
}

}  // namespace sluice
