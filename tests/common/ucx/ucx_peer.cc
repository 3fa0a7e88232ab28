// One process of the tests of UCX, which they stop and kill:
//   ucx_peer host DEVICES SEED BYTES                      prints WORKER KEY ADDRESS, and serves
//   ucx_peer read DEVICES WORKER KEY ADDRESS BYTES        prints a line before each read, for ever
// WORKER and KEY are in hex.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/ucx/ucx.h"
#include "tests/common/ucx/peer_bytes.h"

namespace sluice {
namespace {

uint64_t Number(const std::string& text) {
  uint64_t number = 0;
  SLUICE_CHECK(absl::SimpleAtoi(text, &number));
  return number;
}

void Say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

absl::Status RunPeer(const std::vector<std::string>& args) {
  if (args.size() == 4 && args[0] == "host") {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<UcxHost> host, UcxHost::Start(args[1]));
    SLUICE_ASSIGN_OR_RETURN(const UcxHost::Memory memory, host->Allocate(Number(args[3])));
    PeerBytes(Number(args[2]), memory.bytes).copy(memory.data, memory.bytes);
    Say(absl::BytesToHexString(host->worker()) + " " + absl::BytesToHexString(memory.key) + " " +
        std::to_string(reinterpret_cast<uintptr_t>(memory.data)));
    while (true) pause();
  }
  if (args.size() != 6 || args[0] != "read") return absl::InvalidArgumentError("host or read");
  const UcxPlace place = {.worker = absl::HexStringToBytes(args[2]),
                          .key = absl::HexStringToBytes(args[3]),
                          .address = Number(args[4]),
                          .bytes = Number(args[5])};
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<UcxReader> reader,
                          UcxReader::Connect(args[1], place.worker, place.bytes));
  while (true) {
    Say("reading");
    SLUICE_RETURN_IF_ERROR(reader->Read(place, absl::InfiniteDuration()).status());
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const absl::Status status = sluice::RunPeer({argv + 1, argv + argc});
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
