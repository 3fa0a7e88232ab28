#include "common/plugins/plugin_server.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/plugins/plugin_stream.h"
#include "sluice/plugin/v1/plugin.pb.h"

namespace sluice {
namespace {

constexpr absl::Duration kStampTime = absl::Seconds(2);  // For a look at its description.
// Time to learn what keeps the server from being reached.
constexpr absl::Duration kReasonTime = absl::Milliseconds(100);

class ServerPlugin : public PluginSource {
 public:
  ServerPlugin(std::string name, const PluginServer& server, plugin::v1::DescribeRequest hello)
      : name_(std::move(name)), server_(server), hello_(std::move(hello)) {}

  std::string name() const override { return absl::StrCat("server ", name_); }

  absl::StatusOr<std::string> Version(absl::Duration connect, absl::Duration timeout) override {
    const absl::StatusOr<PluginDescription> description =
        AskDescription(AwaitConnection(connect) ? timeout : kReasonTime);
    if (description.ok()) return VersionOf(*description);
    return Annotate(description.status(),
                    absl::StrCat("plug-in ", name(), " at ", server_.address));
  }

  std::string Stamp() override {
    const absl::StatusOr<PluginDescription> description = AskDescription(kStampTime);
    MutexLock lock(&mu_);
    // One that is down is no other version.
    if (description.ok()) stamp_ = VersionOf(*description);
    return stamp_;
  }

  absl::Status CheckVersion(const PluginDescription& description,
                            const std::string& version) override {
    const std::string now = VersionOf(description);
    if (now == version) return absl::OkStatus();
    return ErrorWith(absl::StatusCode::kUnavailable,
                     {.reason = "PLUGIN_CHANGED",
                      .hint = "bring the old version back; `sluice reward reload` loads the new "
                              "one"},
                     absl::StrCat("plug-in ", name(), " has changed since the job began, from ",
                                  version.empty() ? "none" : version, " to ", now,
                                  ": answers of one group would be scored by two programs"));
  }

  absl::StatusOr<std::shared_ptr<PluginInstance>> Start(const std::string&, TakeLine) override {
    return MakePluginStream(server_.channel, hello_);
  }

  void Stop() override {
    MutexLock lock(&mu_);
    stopped_ = true;
    for (grpc::ClientContext* const context : asking_) context->TryCancel();
  }

  int instances() const override { return 1; }
  // A try costs no process.
  absl::Duration most_back_off() const override { return absl::Seconds(2); }

 private:
  static std::string VersionOf(const PluginDescription& description) {
    return absl::StrCat(description.name, " ", description.version);
  }

  // False: `timeout` has passed, or Stop() was called.
  bool AwaitConnection(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    while (absl::Now() < deadline) {
      {
        MutexLock lock(&mu_);
        if (stopped_) return false;
      }
      const absl::Time next = std::min(deadline, absl::Now() + absl::Milliseconds(50));
      if (server_.channel->WaitForConnected(absl::ToChronoTime(next))) return true;
    }
    return false;
  }

  absl::StatusOr<PluginDescription> AskDescription(absl::Duration timeout) {
    grpc::ClientContext context;
    {
      MutexLock lock(&mu_);
      if (stopped_) return absl::CancelledError("the plug-in is stopped");
      asking_.insert(&context);
    }
    auto description = DescribePluginServer(server_.channel, hello_, timeout, &context);
    MutexLock lock(&mu_);
    asking_.erase(&context);
    return description;
  }

  const std::string name_;
  const PluginServer server_;
  const plugin::v1::DescribeRequest hello_;
  Mutex mu_;
  std::set<grpc::ClientContext*> asking_ ABSL_GUARDED_BY(mu_);  // Describe() under way.
  std::string stamp_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PluginSource>> MakePluginServer(const PluginSpec& spec,
                                                               const std::string& job,
                                                               const PluginServers* servers) {
  const PluginServers none;
  const PluginServers& known = servers == nullptr ? none : *servers;
  const auto server = known.find(spec.server);
  if (server == known.end()) {
    const auto name_of = [](std::string* out, const auto& entry) { out->append(entry.first); };
    return ErrorWith(
        absl::StatusCode::kNotFound,
        {.reason = "NO_PLUGIN_SERVER",
         .hint = "the operator names servers in the file of the flag "
                 "--plugin-servers of sluice-reward"},
        absl::StrCat("there is no plug-in server \"", spec.server, "\" here; the servers are: ",
                     known.empty() ? "none" : absl::StrJoin(known, ", ", name_of)));
  }
  plugin::v1::DescribeRequest hello;
  hello.set_job(job);
  hello.set_config(spec.config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return std::make_unique<ServerPlugin>(spec.server, server->second, std::move(hello));
}

}  // namespace sluice
