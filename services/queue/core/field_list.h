#pragma once

#include <concepts>
#include <type_traits>

namespace sluice::queue {

template <typename T, typename Named>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Named>;

// SLUICE_FIELDS(Type, names of all its fields, in order) makes the function by which an archive
// (archive.h) writes or reads the fields of a Type. The names are there for people only: the
// compiler checks that there are as many names as fields, and binds them in order.
#define SLUICE_FIELDS(Type, ...)                                   \
  template <typename Archive>                                      \
  void Fields(Archive& archive_, MaybeConst<Type> auto& struct_) { \
    auto& [__VA_ARGS__] = struct_;                                 \
    archive_(__VA_ARGS__);                                         \
  }

}  // namespace sluice::queue
