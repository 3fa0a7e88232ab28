#include <sys/stat.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "tests/fuzz/target.h"

// Fills the corpus with the target's seeds if it is empty or absent. The corpus is the first
// directory named on the command line.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string dir = (*argv)[i];
    if (dir[0] == '-') continue;
    if (!sluice::MakeDirs(dir).ok()) break;
    const auto names = sluice::ListDir(dir);
    if (!names.ok() || !names->empty()) break;
    int number = 0;
    for (const std::string& seed : sluice::fuzz::Seeds())
      (void)sluice::WriteFileAtomic(absl::StrCat(dir, "/seed-", number++), seed);
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sluice::fuzz::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
