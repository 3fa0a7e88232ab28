#include "common/data/columnar.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr char kModule[] = "libsluice_columnar.so";

struct Module {
  ColumnarFunction read = nullptr;
  std::string why;  // Why there is none.
};

Module LoadModule() {
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return {nullptr, "/proc/self/exe cannot be read"};
  for (const fs::path& path : {bin / kModule, bin.parent_path() / "lib/sluice" / kModule}) {
    if (!fs::exists(path, error)) continue;
    // It stays loaded, because other threads may be in it at any time.
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return {nullptr, dlerror()};
    const auto read = reinterpret_cast<ColumnarFunction>(dlsym(handle, kColumnarFunction));
    if (read == nullptr) return {nullptr, absl::StrCat(path.string(), " is of another build")};
    return {read, ""};
  }
  return {nullptr, absl::StrCat("there is no ", kModule, " beside the program")};
}

}  // namespace

absl::Status ReadColumnar(const ColumnarQuery& query) {
  static const Module module = LoadModule();
  if (module.read == nullptr) {
    return ErrorWith(absl::StatusCode::kFailedPrecondition,
                     {.reason = "UNSUPPORTED",
                      .catalogue = "SLUICE-DATA-0003",
                      .hint = "install pyarrow where CMake finds it (-DSLUICE_ARROW=DIR) and build "
                              "again, or convert the file to JSON lines"},
                     absl::StrCat("files of Parquet and Arrow cannot be read: ", module.why));
  }
  std::string wrong;
  module.read(query, &wrong);
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(wrong);
}

}  // namespace sluice
