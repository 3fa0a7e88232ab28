#include "common/ucx/ucx.h"

namespace sluice {
namespace {

absl::Status NoUcx() {
  return absl::UnimplementedError(
      "this build has no UCX: install libucx-dev and build again with -DSLUICE_UCX=ON");
}

}  // namespace

class UcxHost::Impl {};
class UcxReader::Impl {};

absl::Status TryUcx(const std::string&) { return NoUcx(); }

absl::StatusOr<std::unique_ptr<UcxHost>> UcxHost::Start(const std::string&) { return NoUcx(); }
UcxHost::~UcxHost() = default;
const std::string& UcxHost::worker() const {
  static const std::string none;
  return none;
}
absl::StatusOr<UcxHost::Memory> UcxHost::Allocate(uint64_t) { return NoUcx(); }

absl::StatusOr<std::unique_ptr<UcxReader>> UcxReader::Connect(const std::string&,
                                                              const std::string&, uint64_t) {
  return NoUcx();
}
UcxReader::~UcxReader() = default;
const std::string& UcxReader::worker() const {
  static const std::string none;
  return none;
}
absl::StatusOr<absl::string_view> UcxReader::Read(const UcxPlace&, absl::Duration) {
  return NoUcx();
}
void UcxReader::Interrupt() {}

}  // namespace sluice
