#pragma once

#include <signal.h>

#include <string>
#include <utility>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"

namespace sluice {

// Writes a file of a plug-in into a folder of this test process, and returns its path.
inline std::string WritePlugin(const std::string& name, const std::string& text) {
  signal(SIGPIPE, SIG_IGN);  // As every daemon does.
  const std::string path = testing_data::TempPath(name);
  SLUICE_CHECK(MakeDirs(path.substr(0, path.rfind('/'))).ok());
  SLUICE_CHECK(WriteFileAtomic(path, text).ok());
  return path;
}

}  // namespace sluice
