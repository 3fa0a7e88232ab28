#pragma once

#include "common/verifiers/verifier.h"

namespace sluice {

// A program of the user scores the answer; PluginSpec (plugin_spec.h) has the arguments. The score
// is any finite number from `low` to `high`. It gives no score if its reward does not apply
// (Verdict::Kind::kAbsent), or if it has an error (kUnscorable), and never a 0 in their place.
//
// Score() is not pure as that of built-in verifiers: it has the program score, and each call may
// wait for the context's timeout and take as long again. Its errors:
// FAILED_PRECONDITION: this process runs no plug-ins.
// UNAVAILABLE: the program reports an error that another try may mend.
// Others as RunPlugin.
absl::StatusOr<std::unique_ptr<Verifier>> MakePlugin(const nlohmann::json& args,
                                                     const VerifierContext& context);

}  // namespace sluice
