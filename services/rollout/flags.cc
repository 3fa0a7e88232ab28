#include "services/rollout/flags.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/daemon/collective_flags.h"
#include "common/daemon/cores.h"
#include "common/daemon/ucx.h"

namespace sluice::rollout {
namespace {

constexpr char kGraceFlag[] = "--drain-grace";
constexpr char kHttpFlag[] = "--http", kKeysFlag[] = "--http-keys", kCertFlag[] = "--http-cert",
               kCertKeyFlag[] = "--http-cert-key";
constexpr char kAdaptersFlag[] = "--http-adapters";
constexpr absl::Duration kGrace = absl::Seconds(3);

// Parses NAME=DIR[,NAME=DIR..].
absl::StatusOr<std::map<std::string, std::string>> ParseAdapters(const std::string& text) {
  std::map<std::string, std::string> adapters;
  for (const absl::string_view entry : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const bool named =
        !parts.first.empty() && parts.first.size() <= 63 && absl::c_all_of(parts.first, [](char c) {
          return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
        });
    if (!named || parts.second.empty() || !adapters.emplace(parts).second) {
      return ErrorWith(
          absl::StatusCode::kInvalidArgument,
          {.hint = "give NAME=DIR[,NAME=DIR..]; each name is used once and has at most 63 letters, "
                   "digits, dashes, dots and underscores"},
          absl::StrCat(kAdaptersFlag, " ", entry, ": this is not NAME=DIR with a new name"));
    }
  }
  return adapters;
}

// Reads a duration above 0. `otherwise` is what an unset flag means.
absl::StatusOr<absl::Duration> ParseGrace(const std::string& text, absl::Duration otherwise) {
  if (text.empty()) return otherwise;
  absl::Duration grace;
  if (absl::ParseDuration(text, &grace) && grace > absl::ZeroDuration()) return grace;
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {.hint = "give a duration above 0, such as 500ms or 30s"},
                   absl::StrCat(kGraceFlag, " ", text, ": this is not a duration above 0"));
}

// Checks that the flags of the HTTP API go together.
absl::Status CheckHttp(const RolloutOptions& options) {
  if (options.http_cert.empty() != options.http_cert_key.empty()) {
    return ErrorWith(absl::StatusCode::kInvalidArgument, {.hint = "give both, or neither"},
                     absl::StrCat(kCertFlag, " and ", kCertKeyFlag, " must be given together"));
  }
  if (options.http.empty() &&
      !(options.http_keys.empty() && options.http_cert.empty() && options.adapters.empty())) {
    return ErrorWith(absl::StatusCode::kInvalidArgument,
                     {.hint = absl::StrCat("add ", kHttpFlag, " IP:PORT")},
                     absl::StrCat("keys, adapters or a certificate are given, but no ", kHttpFlag));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<daemon::About::Flag> RolloutFlags() {
  std::vector<daemon::About::Flag> flags = {
      {kGraceFlag,
       absl::StrCat("time that running answers get to end on SIGTERM; another worker goes on "
                    "with those that have not ended; default ",
                    absl::FormatDuration(kGrace)),
       "SLUICE_DRAIN_GRACE"},
      {kHttpFlag,
       "IP:PORT of the OpenAI-compatible HTTP API: GET /v1/models, POST /v1/completions and "
       "/v1/chat/completions; port 0 takes any free port; an address that is not loopback "
       "needs keys and TLS; default: no API",
       "SLUICE_HTTP"},
      {kKeysFlag,
       "file of the API's bearer keys, which not every user may read; each line is NAME KEY "
       "[MOST_ANSWERS]; default: no key is needed",
       "SLUICE_HTTP_KEYS"},
      {kAdaptersFlag,
       "NAME=DIR[,NAME=DIR..]: LoRA adapters, in directories as PEFT writes them; the API "
       "serves each one beside the model of each job, as JOB:NAME; default: none",
       "SLUICE_HTTP_ADAPTERS"},
      {kCertFlag, "PEM file of the API's certificate chain; default: no TLS"},
      {kCertKeyFlag, "PEM file of the certificate's private key"},
      daemon::CoresFlag(),
      daemon::UcxFlag()};
  for (daemon::About::Flag& flag : daemon::CollectiveFlags()) flags.push_back(std::move(flag));
  return flags;
}

absl::StatusOr<RolloutOptions> ReadRolloutFlags(const daemon::Flags& flags) {
  RolloutOptions options{.http = flags.OwnFlag(kHttpFlag),
                         .http_keys = flags.OwnFlag(kKeysFlag),
                         .http_cert = flags.OwnFlag(kCertFlag),
                         .http_cert_key = flags.OwnFlag(kCertKeyFlag),
                         .ucx_devices = daemon::UcxDevices(flags)};
  SLUICE_ASSIGN_OR_RETURN(options.cores, daemon::OpenCores(flags));
  SLUICE_ASSIGN_OR_RETURN(options.adapters, ParseAdapters(flags.OwnFlag(kAdaptersFlag)));
  SLUICE_ASSIGN_OR_RETURN(options.grace, ParseGrace(flags.OwnFlag(kGraceFlag), kGrace));
  SLUICE_RETURN_IF_ERROR(CheckHttp(options));
  SLUICE_RETURN_IF_ERROR(daemon::CheckUcxFlag(flags));
  return options;
}

}  // namespace sluice::rollout
