#include "common/base/secret.h"

#include <cstring>

namespace sluice {

void Secret::Wipe(std::string* text) {
  text->resize(text->capacity());
  // The compiler must not leave out a write to memory that is freed next.
  explicit_bzero(text->data(), text->size());
  text->clear();
}

}  // namespace sluice
