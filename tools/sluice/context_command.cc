// sluice context: names fleets, so that commands need no --server and no SLUICE_TLS.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/identity.h"
#include "tools/sluice/commands.h"
#include "tools/sluice/context.h"
#include "tools/sluice/options.h"
#include "tools/sluice/output.h"
#include "tools/sluice/table.h"

namespace sluice::cli {
namespace {

struct ContextOptions {
  std::string name, server, tls, output;
};

ExitCode ListContexts(const ContextOptions& o, const Contexts& contexts) {
  if (o.output == "name") {
    for (const auto& [name, context] : contexts.all) std::printf("%s\n", name.c_str());
    return kDone;
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows = {{"CURRENT", "NAME", "SERVER", "TLS"}};
  for (const auto& [name, context] : contexts.all) {
    const bool current = name == contexts.current;
    json.push_back(
        {{"name", name}, {"current", current}, {"server", context.server}, {"tls", context.tls}});
    rows.push_back(
        {current ? "*" : "", name, context.server, context.tls.empty() ? "-" : context.tls});
  }
  if (IsData(o.output)) PrintData(json, o.output);
  else std::fputs(Table(rows).c_str(), stdout);
  return kDone;
}

absl::Status NoContextError(const std::string& name) {
  return ErrorWith(absl::StatusCode::kNotFound, {.hint = "`sluice context list` shows them"},
                   absl::StrCat("there is no context ", name));
}

absl::Status UseContext(const ContextOptions& o, Contexts* contexts) {
  if (contexts->all.count(o.name) == 0) return NoContextError(o.name);
  contexts->current = o.name;
  return absl::OkStatus();
}

// Options that are not given keep their values.
absl::Status SetContext(const ContextOptions& o, Contexts* contexts) {
  if (!rpc::IsName(o.name))
    return absl::InvalidArgumentError(
        absl::StrCat("'", o.name,
                     "' cannot be a name; wanted: 1 to 63 of a-z, 0-9, '.', '_' and '-', first a "
                     "letter or a digit"));
  for (const absl::string_view address : absl::StrSplit(o.server, ',', absl::SkipEmpty()))
    SLUICE_RETURN_IF_ERROR(rpc::CheckAddress(address, /*tls=*/true));
  const bool made = contexts->all.count(o.name) == 0;
  if (made && o.server.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("the new context ", o.name, " needs --server HOST:PORT"));
  if (!o.tls.empty() && !PathExists(o.tls))
    return absl::NotFoundError(absl::StrCat("there is no TLS folder ", o.tls));

  Context& context = contexts->all[o.name];
  if (!o.server.empty()) context.server = o.server;
  if (!o.tls.empty()) context.tls = std::filesystem::absolute(o.tls).lexically_normal().string();
  if (contexts->all.size() == 1) contexts->current = o.name;  // The only one is the current one.
  return absl::OkStatus();
}

absl::Status DeleteContext(const ContextOptions& o, Contexts* contexts) {
  if (contexts->all.erase(o.name) == 0) return NoContextError(o.name);
  if (contexts->current == o.name) contexts->current.clear();
  return absl::OkStatus();
}

using Change = absl::Status (*)(const ContextOptions&, Contexts*);

// Makes a command that changes the file.
Command ChangeCommand(const char* name, const char* summary, const char* example, Change change,
                      std::function<void(CLI::App*, ContextOptions*)> extra = {}) {
  return {"context", name, summary, example, [change, extra](CLI::App* app) {
            auto o = std::make_shared<ContextOptions>();
            app->add_option("NAME", o->name, "name of the context")->required();
            if (extra) extra(app, o.get());
            return [o, change] {
              absl::StatusOr<Contexts> contexts = ReadContexts(ContextsPath());
              absl::Status status = contexts.status();
              if (status.ok()) status = change(*o, &*contexts);
              if (status.ok()) status = WriteContexts(ContextsPath(), *contexts);
              if (!status.ok()) return Complain(status);
              std::fprintf(stderr, "current context: %s\n",
                           contexts->current.empty() ? "none" : contexts->current.c_str());
              return kDone;
            };
          }};
}

}  // namespace

std::vector<Command> ContextCommands() {
  return {
      {"context", "list", "List the named fleets.",
       "  sluice context list\n  sluice context list -o name",
       [](CLI::App* app) {
         auto o = std::make_shared<ContextOptions>();
         AddFormats(app, &o->output, {"name"});
         return [o] {
           const absl::StatusOr<Contexts> contexts = ReadContexts(ContextsPath());
           return contexts.ok() ? ListContexts(*o, *contexts) : Complain(contexts.status());
         };
       }},
      ChangeCommand("use", "Use a fleet from now on.", "  sluice context use prod", UseContext),
      ChangeCommand(
          "set", "Name a fleet, or change what a name means.",
          "  sluice context set here --server 127.0.0.1:7400", SetContext,
          [](CLI::App* app, ContextOptions* o) {
            app->add_option("--server", o->server,
                            "HOST:PORT of its controller, or several with commas between");
            app->add_option("--tls", o->tls, "the TLS folder with your certificate for it");
          }),
      ChangeCommand("delete", "Forget a name. The fleet is not touched.",
                    "  sluice context delete here", DeleteContext),
  };
}

}  // namespace sluice::cli
