#include "common/chat/filters.h"

namespace sluice::chat {

const Function* FindFilter(absl::string_view name) {
  for (const auto& family :
       {TextFilters(), NumberFilters(), SequenceFilters(), SelectionFilters()}) {
    for (const Function& filter : family) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

}  // namespace sluice::chat
