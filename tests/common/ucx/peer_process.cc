#include "tests/common/ucx/peer_process.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace sluice {

absl::StatusOr<UcxHostProcess> UcxHostProcess::Start(const std::string& devices, uint64_t seed,
                                                     uint64_t bytes) {
  UcxHostProcess host;
  SLUICE_ASSIGN_OR_RETURN(
      host.process, integration::Process::Start(
                        {.binary = "ucx_peer",
                         .args = {"host", devices, absl::StrCat(seed), absl::StrCat(bytes)}}));
  SLUICE_ASSIGN_OR_RETURN(const std::string line, host.process->ReadLine(integration::kLong));
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words.size() != 3 || !absl::SimpleAtoi(words[2], &host.place.address))
    return absl::InternalError(line);
  host.place.worker = absl::HexStringToBytes(words[0]);
  host.place.key = absl::HexStringToBytes(words[1]);
  host.place.bytes = bytes;
  return host;
}

absl::StatusOr<std::unique_ptr<integration::Process>> StartUcxReader(const std::string& devices,
                                                                     const UcxPlace& place) {
  return integration::Process::Start(
      {.binary = "ucx_peer",
       .args = {"read", devices, absl::BytesToHexString(place.worker),
                absl::BytesToHexString(place.key), absl::StrCat(place.address),
                absl::StrCat(place.bytes)}});
}

}  // namespace sluice
