#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::testing_data {

// The folder with the shared test data: $SLUICE_TEST_DATA, or else ../shared/data beside the source
// tree.
inline std::string Dir() {
  const char* const dir = std::getenv("SLUICE_TEST_DATA");
  return dir != nullptr && *dir != '\0' ? dir : std::string(SLUICE_SOURCE_DIR) + "/../shared/data";
}
inline std::string Path(const std::string& relative) { return Dir() + "/" + relative; }

// A path in a folder that belongs to this process alone, because ctest runs several tests at once.
// The folder is removed when the process ends.
inline std::string TempPath(const std::string& name) {
  static const struct Folder {
    Folder() {
      const char* const dir = std::getenv("TMPDIR");
      path = std::string(dir != nullptr ? dir : "/tmp") + "/sluice-test-XXXXXX";
      SLUICE_CHECK(mkdtemp(path.data()) != nullptr);
    }
    ~Folder() {
      if (getpid() == owner) std::filesystem::remove_all(path);
    }
    std::string path;
    pid_t owner = getpid();
  } folder;
  return folder.path + "/" + name;
}

}  // namespace sluice::testing_data

// Put this at the start of a test that needs the file or folder `relative` of the test data. If
// that is absent, the test is skipped with a message.
#define SLUICE_NEEDS_TEST_DATA(relative)                                       \
  if (!::sluice::PathExists(::sluice::testing_data::Path(relative)))           \
  GTEST_SKIP() << "no test data at " << ::sluice::testing_data::Path(relative) \
               << "; set SLUICE_TEST_DATA"
