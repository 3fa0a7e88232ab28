#include "common/tokenizer/metaspace.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

absl::StatusOr<Metaspace> Metaspace::Parse(const Component& component) {
  // Older files repeat the replacement in str_rep, which is not used.
  SLUICE_RETURN_IF_ERROR(component.CheckKeys(
      {"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}));
  Metaspace metaspace;
  SLUICE_ASSIGN_OR_RETURN(metaspace.replacement, component.Character("replacement"));
  SLUICE_ASSIGN_OR_RETURN(const std::string scheme, component.String("prepend_scheme", "always"));
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return component.Invalid(
        absl::StrCat("prepend_scheme is \"", scheme, "\"; want always, first or never"));
  }

  metaspace.prepend = scheme == "always" ? kAlways : scheme == "first" ? kFirst : kNever;
  // add_prefix_space: false is the older spelling of `never`.
  SLUICE_ASSIGN_OR_RETURN(const bool add_prefix_space, component.Bool("add_prefix_space", true));
  if (!add_prefix_space) {
    if (scheme != "never")
      return component.Invalid(absl::StrCat("add_prefix_space is false and prepend_scheme \"",
                                            scheme, "\": they contradict each other"));
    metaspace.prepend = kNever;
  }
  SLUICE_ASSIGN_OR_RETURN(metaspace.split, component.Bool("split", true));
  return metaspace;
}

}  // namespace sluice
