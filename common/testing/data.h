#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/base/file.h"

namespace sluice::testing_data {

// The folder with the shared test data: $SLUICE_TEST_DATA, or ../shared/data beside the source tree.
inline std::string Dir() {
  const char* const dir = std::getenv("SLUICE_TEST_DATA");
  return dir != nullptr && *dir != '\0' ? dir : std::string(SLUICE_SOURCE_DIR) + "/../shared/data";
}
inline std::string Path(const std::string& relative) { return Dir() + "/" + relative; }

// A path in the folder for temporary files that no other test process uses: ctest runs several at once.
inline std::string TempPath(const std::string& name) {
  const char* const dir = std::getenv("TMPDIR");
  return std::string(dir != nullptr ? dir : "/tmp") + "/sluice-test-" + std::to_string(getpid()) + "-" + name;
}

}  // namespace sluice::testing_data

// At the start of a test that needs the file or folder `relative` of the test data: skips it, aloud, where that is absent.
#define SLUICE_NEEDS_TEST_DATA(relative)                                                                  \
  if (!::sluice::PathExists(::sluice::testing_data::Path(relative)))                                      \
  GTEST_SKIP() << "no test data at " << ::sluice::testing_data::Path(relative) << "; set SLUICE_TEST_DATA"
