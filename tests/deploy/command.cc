#include "tests/deploy/command.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"
#include "tests/integration/harness/process.h"

namespace sluice::deploy {

absl::StatusOr<std::string> RunCommand(const std::vector<std::string>& command,
                                       const std::map<std::string, std::string>& env,
                                       absl::Duration timeout) {
  // `env` looks the program up in the PATH; its exit code 127 means that there is none.
  SLUICE_ASSIGN_OR_RETURN(const std::string dir, MakeTempDir());
  SLUICE_ASSIGN_OR_RETURN(const integration::Finished finished,
                          integration::RunToEnd({.binary = "/usr/bin/env",
                                                 .args = command,
                                                 .env = env,
                                                 .log = absl::StrCat(dir, "/stderr")},
                                                timeout));
  if (finished.exit == 127)
    return absl::NotFoundError(absl::StrCat("there is no program ", command[0]));
  if (finished.exit == 0) return finished.out;
  return absl::InternalError(
      absl::StrCat(absl::StrJoin(command, " "), " ended with ", finished.exit, ": ", finished.err));
}

absl::StatusOr<std::string> MakeTempDir() {
  static int made = 0;
  const std::string dir = testing_data::TempPath(absl::StrCat("dir-", made++));
  SLUICE_RETURN_IF_ERROR(MakeDirs(dir));
  return dir;
}

}  // namespace sluice::deploy
