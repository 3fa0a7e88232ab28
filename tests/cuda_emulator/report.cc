#include "tests/cuda_emulator/report.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <map>

#include "tests/cuda_emulator/emulator.h"
#include "tests/cuda_emulator/threads.h"

extern "C" {
void __sanitizer_set_death_callback(void (*callback)());
const char* __ubsan_default_options() { return "exitcode=86"; }
}

namespace sluice::cuda_emulator {
namespace {

static_assert(kFaultExitCode == 86);  // The exit code that __ubsan_default_options() sets above.

// Asks addr2line for the source line of `pc`. The innermost inlined function comes first; functions
// in the emulator's own headers are passed over, because they are inlined into the kernel.
std::string AskAddr2line(const void* pc) {
  Dl_info image;
  if (dladdr(pc, &image) == 0) return "?";
  const uintptr_t offset =
      reinterpret_cast<uintptr_t>(pc) - reinterpret_cast<uintptr_t>(image.dli_fbase) - 1;
  char command[4200];
  std::snprintf(command, sizeof(command), "addr2line -i -e '/proc/%d/exe' 0x%zx 2>/dev/null",
                static_cast<int>(getpid()), static_cast<size_t>(offset));
  FILE* const pipe = popen(command, "r");
  if (pipe == nullptr) return "?";
  std::string found = "?";
  char line[4200];

  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    std::string frame(line);
    frame = frame.substr(0, frame.find_first_of(" \n"));
    if (found != "?" || frame.find("/cuda_runtime.h:") != std::string::npos) continue;
    found = frame;
  }

  pclose(pipe);
  return found.starts_with("?") ? "?" : found;
}

std::string Triple(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

void PrintThread() {
  if (running_kernel == nullptr) return;
  std::fprintf(stderr, "  in kernel %s, block %s", running_kernel,
               Triple(blockIdx.x, blockIdx.y, blockIdx.z).c_str());
  if (current != nullptr)
    std::fprintf(stderr, ", thread %s", Triple(threadIdx.x, threadIdx.y, threadIdx.z).c_str());
  std::fprintf(stderr, "; CUDA_EMULATOR_SEED=%llu\n", static_cast<unsigned long long>(seed_in_use));
}

// UndefinedBehaviorSanitizer is linked as a library. It prints what it finds and where, and calls
// this before it ends the program.
const bool kCallbackIsSet = [] {
  __sanitizer_set_death_callback([] {
    watching = false;
    PrintThread();
  });
  return true;
}();

}  // namespace

std::string SourceLine(const void* pc) {
  static std::map<const void*, std::string>& known = *new std::map<const void*, std::string>();
  const auto [at, added] = known.try_emplace(pc);
  if (added) at->second = AskAddr2line(pc);
  return at->second;
}

void Fail(const void* pc, const std::string& what, const std::string& details) {
  watching = false;
  std::fflush(stdout);
  std::fprintf(stderr, "cuda_emulator: %s\n%s", what.c_str(), details.c_str());
  std::fprintf(stderr, "  at %s\n", SourceLine(pc).c_str());
  PrintThread();
  std::fflush(stderr);
  _exit(kFaultExitCode);
}

}  // namespace sluice::cuda_emulator
