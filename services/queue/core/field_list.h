#pragma once

#include <concepts>
#include <type_traits>

namespace sluice::queue {

template <typename T, typename Named>
concept Of = std::same_as<std::remove_const_t<T>, Named>;

// The names serve the reader only. The compiler checks that there are as many as the struct has
// fields, and binds them in order.
#define SLUICE_FIELDS(Type, ...)                           \
  template <typename Archive>                              \
  void Fields(Archive& archive_, Of<Type> auto& struct_) { \
    auto& [__VA_ARGS__] = struct_;                         \
    archive_(__VA_ARGS__);                                 \
  }

}  // namespace sluice::queue
