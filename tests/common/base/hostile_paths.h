#pragma once

#include <string>
#include <vector>

namespace sluice {

// Paths that lead out of the root `dir`/read, or that are not plain absolute paths.
inline std::vector<std::string> HostilePaths(const std::string& dir) {
  const std::string read = dir + "/read";
  std::vector<std::string> hostile = {"",
                                      "/",
                                      "relative",
                                      "./read",
                                      "~/read",
                                      dir + "/outside/secret",
                                      dir + "/readable",
                                      read + "/",
                                      read + "//model",
                                      read + std::string("/a\0b", 4),
                                      "/proc/self/environ",
                                      "/proc/self/root" + read,
                                      "/dev/stdin",
                                      "/dev/fd/3",
                                      "file://" + read};
  // Each way to climb out, at each depth.
  for (const char* climb :
       {"..", ".", "../..", "../outside/secret", "./../outside", "..//outside"}) {
    for (const char* below : {"", "/model", "/model/a", "/model/a/b", "/x/../y"}) {
      hostile.push_back(read + below + "/" + climb);
      hostile.push_back(read + below + "/" + climb + "/etc/passwd");
      hostile.push_back(read + "/" + climb + below + "/z");
    }
  }
  return hostile;
}

}  // namespace sluice
