// Commands that make and show the certificates of a fleet. They contact no daemon.

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/pki/tls_dir.h"
#include "common/rpc/identity.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);
// Certificates are valid from a little earlier on, for hosts whose clocks are behind.
constexpr absl::Duration kClockSlack = absl::Minutes(5);
constexpr int kMostDays = 36500;

struct PkiOptions {
  std::string dir, domain = "sluice", ca, out, role, name, output;
  std::vector<std::string> hosts;
  int days = 0;
};

std::string FormatDay(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

ExitCode InitPki(const PkiOptions& o) {
  if (!rpc::IsName(o.domain)) {
    return Complain(absl::InvalidArgumentError(
        absl::StrCat("'", o.domain,
                     "' cannot be a domain; wanted: 1 to 63 of a-z, 0-9, '.', '_' and '-', first a "
                     "letter or a digit")));
  }
  const std::string key = absl::StrCat(o.dir, "/", pki::kAuthorityKeyFile);
  if (PathExists(key)) {
    return Complain(ErrorWith(
        absl::StatusCode::kAlreadyExists,
        {.hint = "name another folder; certificates of a lost authority cannot be renewed"},
        absl::StrCat(o.dir, " holds an authority already")));
  }

  const absl::Time now = absl::Now();
  const absl::StatusOr<pki::KeyPair> authority =
      pki::MakeAuthority({.name = absl::StrCat("Sluice authority of ", o.domain).substr(0, 64),
                          .uri = absl::StrCat("spiffe://", o.domain)},
                         {now - kClockSlack, now + o.days * kDay});
  if (!authority.ok()) return Complain(authority.status());
  absl::Status status = MakeDirs(o.dir);
  if (status.ok()) status = WriteSecretAtomic(key, authority->key.Reveal());
  if (status.ok())
    status = WriteFileAtomic(absl::StrCat(o.dir, "/", pki::kAuthorityFile), authority->certificate);
  if (!status.ok()) return Complain(status);

  std::printf("%s\n", o.dir.c_str());
  std::fprintf(stderr,
               "authority of the domain %s, valid until %s\nwho has %s can be every daemon and "
               "every person of the domain: keep it off the fleet's hosts\n",
               o.domain.c_str(), FormatDay(now + o.days * kDay).c_str(), key.c_str());
  return kDone;
}

absl::StatusOr<pki::KeyPair> ReadAuthority(const std::string& dir) {
  const auto read = [&](const char* name) -> absl::StatusOr<std::string> {
    absl::StatusOr<std::string> text = ReadFile(absl::StrCat(dir, "/", name));
    if (text.ok()) return text;
    return ErrorWith(text.status().code(), {.hint = "make an authority with `sluice pki init`"},
                     text.status().message());
  };
  SLUICE_ASSIGN_OR_RETURN(std::string certificate, read(pki::kAuthorityFile));
  SLUICE_ASSIGN_OR_RETURN(std::string key, read(pki::kAuthorityKeyFile));
  return pki::KeyPair{std::move(certificate), Secret(std::move(key))};
}

absl::Status Issue(const PkiOptions& o, rpc::Identity* identity, absl::Time* until) {
  *identity = {rpc::ParseRole(o.role), o.name};
  if (o.name != "*" && !rpc::IsName(o.name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", o.name,
        "' cannot be a name; wanted: 1 to 63 of a-z, 0-9, '.', '_' and '-', first a letter or a "
        "digit; or '*' for every daemon of the role"));
  }
  SLUICE_ASSIGN_OR_RETURN(const pki::KeyPair authority, ReadAuthority(o.ca));
  SLUICE_ASSIGN_OR_RETURN(const pki::Certificate about,
                          pki::ParseCertificate(authority.certificate));
  SLUICE_ASSIGN_OR_RETURN(const std::string domain, rpc::DomainOf(about.subject.uri));

  const absl::Time now = absl::Now();
  *until = std::min(now + o.days * kDay, about.validity.until);
  if (*until <= now)
    return absl::FailedPreconditionError(
        absl::StrCat("the authority of ", o.ca, " ended on ", FormatDay(about.validity.until)));
  SLUICE_ASSIGN_OR_RETURN(
      pki::KeyPair pair,
      pki::IssueCertificate(authority,
                            {.name = absl::StrCat(o.role, " ", o.name).substr(0, 64),
                             .uri = rpc::IdentityUri(domain, *identity),
                             .hosts = o.hosts},
                            {std::max(now - kClockSlack, about.validity.from), *until}));
  return pki::WriteTlsDir(o.out, {std::move(pair), authority.certificate});
}

ExitCode IssuePki(const PkiOptions& o) {
  rpc::Identity identity;
  absl::Time until;
  if (const absl::Status status = Issue(o, &identity, &until); !status.ok())
    return Complain(status);
  std::printf("%s\n", o.out.c_str());
  std::fprintf(stderr, "certificate of %s, valid until %s\n",
               rpc::DescribeIdentity(identity).c_str(), FormatDay(until).c_str());
  return kDone;
}

// Shows also what cannot be used: then the exit code is kFailed, and the reason is shown.
ExitCode ShowPki(const PkiOptions& o) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(o.dir, "/", pki::kCertificateFile));
  if (!text.ok()) return Complain(text.status());
  const absl::StatusOr<pki::Certificate> certificate = pki::ParseCertificate(*text);
  if (!certificate.ok()) return Complain(Annotate(certificate.status(), o.dir));

  const absl::Time now = absl::Now();
  const absl::Status usable = pki::ReadTlsDir(o.dir, now).status();
  const double days = absl::FDivDuration(certificate->validity.until - now, kDay);
  if (IsData(o.output)) {
    const nlohmann::ordered_json json = {
        {"dir", o.dir},
        {"identity", certificate->subject.uri},
        {"hosts", certificate->subject.hosts},
        {"serial", certificate->serial},
        {"from", absl::ToUnixSeconds(certificate->validity.from)},
        {"until", absl::ToUnixSeconds(certificate->validity.until)},
        {"usable", usable.ok()},
        {"error", std::string(usable.message())}};
    PrintData(json, o.output);
  } else {
    std::fputs(
        Table({{"IDENTITY", "UNTIL", "DAYS LEFT", "USABLE"},
               {certificate->subject.uri, FormatDay(certificate->validity.until),
                absl::StrCat(static_cast<int64_t>(std::floor(days))), usable.ok() ? "yes" : "no"}})
            .c_str(),
        stdout);
  }
  if (usable.ok()) return kDone;
  Complain(usable);
  return kFailed;
}

}  // namespace

std::vector<Command> PkiCommands() {
  return {
      {"pki", "init", "Make the authority that signs the certificates of a fleet.",
       "  sluice pki init ca\n  sluice pki init ca --domain prod.example --days 1825",
       [](CLI::App* app) {
         auto o = std::make_shared<PkiOptions>();
         o->days = 3650;
         app->add_option("DIR", o->dir, "the folder to make, for ca.crt and ca.key")->required();
         app->add_option("--domain", o->domain,
                         "name of the fleet; daemons of other domains are refused")
             ->capture_default_str();
         app->add_option("--days", o->days, "how long it is valid")
             ->check(NumberIn<int>(1, kMostDays))
             ->capture_default_str();
         return [o] { return InitPki(*o); };
       }},
      {"pki", "issue",
       "Issue the certificate of a daemon or a person. Running daemons take a new one up by "
       "themselves.",
       "  sluice pki issue queue queue-0 --ca ca --out tls/queue-0\n  sluice pki issue operator "
       "anna --ca ca --out ~/.config/sluice/tls --days 30",
       [](CLI::App* app) {
         auto o = std::make_shared<PkiOptions>();
         o->days = 90;
         app->add_option("ROLE", o->role,
                         "of a daemon: controller, queue, rollout, reward, trainer; of a person: "
                         "operator, submitter, viewer")
             ->required()
             ->check(CLI::IsMember({"controller", "queue", "rollout", "reward", "trainer",
                                    "operator", "submitter", "viewer"}));
         app->add_option("NAME", o->name,
                         "the daemon's --id or the person's name; '*' for every daemon of the role")
             ->required();
         app->add_option("--ca", o->ca, "the folder of `sluice pki init`")->required();
         app->add_option("--out", o->out, "the folder to write tls.crt, tls.key and ca.crt to")
             ->required();
         app->add_option("--host", o->hosts,
                         "a DNS name or IP address, for clients that are not Sluice's; may be "
                         "repeated");
         app->add_option("--days", o->days,
                         "how long it is valid, at most as long as the authority")
             ->check(NumberIn<int>(1, kMostDays))
             ->capture_default_str();
         return [o] { return IssuePki(*o); };
       }},
      {"pki", "show", "Show whom a certificate names, and whether it can be used now.",
       "  sluice pki show tls/queue-0\n  sluice pki show tls/queue-0 -o json",
       [](CLI::App* app) {
         auto o = std::make_shared<PkiOptions>();
         app->add_option("DIR", o->dir, "a folder of `sluice pki issue`")->required();
         AddFormats(app, &o->output);
         return [o] { return ShowPki(*o); };
       }},
  };
}

}  // namespace sluice::cli
