#include "common/ucx/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace sluice::ucx {
namespace {

// UCX reads these when it is loaded, and setenv() is only safe while there is one thread. What the
// environment says itself counts.
const bool kEnvironmentIsSet = [] {
  // No handlers that print a trace to stdout at a crash.
  setenv("UCX_HANDLE_ERRORS", "none", /*overwrite=*/0);
  // No watch over mmap() and munmap(), for which UCX patches libc: all memory is registered here.
  setenv("UCX_MEM_EVENTS", "n", 0);
  // It would write to stdout what the returned errors say too.
  setenv("UCX_LOG_LEVEL", "fatal", 0);
  return true;
}();

absl::StatusOr<const Library*> Open() {
  void* const handle = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("UCX cannot be loaded (", dlerror(), "); install libucx0"));
  }
  static Library library;
  const char* missing = nullptr;
#define SLUICE_UCX_FIND(name)                                                    \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, #name)); \
  if (library.name == nullptr) missing = #name;
  SLUICE_UCX_FUNCTIONS(SLUICE_UCX_FIND)
#undef SLUICE_UCX_FIND
  if (missing != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("libucp.so.0 has no ", missing,
                     "; install the libucx0 that belongs to this build's headers"));
  }
  return &library;
}

}  // namespace

absl::StatusOr<const Library*> LoadLibrary() {
  static const absl::StatusOr<const Library*> library = Open();
  (void)kEnvironmentIsSet;
  return library;
}

}  // namespace sluice::ucx
