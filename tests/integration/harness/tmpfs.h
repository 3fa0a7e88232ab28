#pragma once

#include <sys/mount.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"

namespace sluice::integration {

// A small file system in memory, mounted at a folder as long as this object lives. Only root may
// mount it.
class Tmpfs {
 public:
  // Makes the folder. `size` is such as "8m".
  Tmpfs(std::string dir, absl::string_view size) : dir_(std::move(dir)) {
    SLUICE_CHECK(MakeDirs(dir_).ok());
    const std::string options = absl::StrCat("size=", size);
    mounted_ = mount("tmpfs", dir_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~Tmpfs() {
    if (mounted_) umount2(dir_.c_str(), MNT_DETACH);
  }
  Tmpfs(const Tmpfs&) = delete;
  Tmpfs& operator=(const Tmpfs&) = delete;

  bool mounted() const { return mounted_; }
  const std::string& path() const { return dir_; }

 private:
  const std::string dir_;
  bool mounted_ = false;
};

}  // namespace sluice::integration
