#pragma once

#include <cstdint>
#include <cstring>

// Access to elements of W bits on the host. Elements may be unaligned.
namespace sluice::kernels {

template <typename Word>
Word Load(const void* elements, uint64_t i) {
  Word x;
  std::memcpy(&x, static_cast<const char*>(elements) + i * sizeof(Word), sizeof(Word));
  return x;
}
template <typename Word>
void Store(void* elements, uint64_t i, Word x) {
  std::memcpy(static_cast<char*>(elements) + i * sizeof(Word), &x, sizeof(Word));
}

// Calls f with a zero of the type that has `width` bytes.
template <typename F>
auto WithWord(int width, F f) {
  switch (width) {
    case 1: return f(uint8_t{0});
    case 2: return f(uint16_t{0});
    case 4: return f(uint32_t{0});
    default: __builtin_trap();  // Callers only have dtypes of these widths.
  }
}

}  // namespace sluice::kernels
