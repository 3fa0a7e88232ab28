#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file.h"
#include "nlohmann/json.hpp"
#include "sluice/plugin/v1/plugin.grpc.pb.h"

namespace sluice {

// A plug-in's server that does, for each answer, what the answer says, right or wrong: "score 0.5"
// gets this score. `config` says how it describes itself; `version_file` there names a file with
// its version, so that it may change at any time. The version "broken" fails its self-test.
class ScriptedServer final : public plugin::v1::RewardPlugin::Service {
 public:
  using Stream = grpc::ServerReaderWriter<plugin::v1::ScoreResponse, plugin::v1::ScoreRequest>;

  grpc::Status Describe(grpc::ServerContext* context, const plugin::v1::DescribeRequest* request,
                        plugin::v1::DescribeResponse* response) override {
    const nlohmann::json config = nlohmann::json::parse(request->config());
    const std::string start = config.value("start", "");
    if (start == "refuse") return {grpc::StatusCode::PERMISSION_DENIED, "not for you"};
    while (start == "silent" && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    response->set_name("test");
    response->set_version(start == "garbage" ? "" : VersionOf(config));
    response->set_granularity(config.value("granularity", "trajectory") == "group"
                                  ? common::v1::GRANULARITY_GROUP
                                  : common::v1::GRANULARITY_TRAJECTORY);
    response->set_max_in_flight(config.value("in_flight", 1u));
    response->add_self_test(
        nlohmann::json(
            {{"item", {{"completion", config.value("test", "score 1")}, {"truncated", nullptr}}},
             {"score", config.value("self_test", 1.0)}})
            .dump());
    return grpc::Status::OK;
  }

  grpc::Status Score(grpc::ServerContext*, Stream* stream) override {
    plugin::v1::ScoreRequest request;
    std::vector<plugin::v1::ScoreResponse> held;
    while (stream->Read(&request)) {
      plugin::v1::ScoreResponse response;
      response.set_id(request.id());
      const nlohmann::json config = nlohmann::json::parse(request.config());
      response.set_version(VersionOf(config));
      bool answer = true;
      for (const plugin::v1::ScoreItem& item : request.items()) {
        const size_t space = std::min(item.completion().find(' '), item.completion().size());
        const std::string word = item.completion().substr(0, space);
        const std::string value(absl::StripPrefix(item.completion().substr(space), " "));
        if (word == "hang") return Drain(stream);
        if (word == "leave") {
          if (value.empty() || TakeMark(value)) return grpc::Status::OK;
          response.add_results()->set_score(1);
        } else if (word == "fail") {
          return {grpc::StatusCode::INTERNAL, "a bug"};
        } else if (word == "exit") {
          _exit(3);
        } else if (word == "kill" || (word == "kill_once" && TakeMark(value))) {
          kill(getpid(), SIGKILL);
        } else if (word == "kill_if") {  // The file is there. It is removed.
          if (unlink(value.c_str()) == 0) kill(getpid(), SIGKILL);
          response.add_results()->set_score(1);
        } else if (word == "kill_once") {
          response.add_results()->set_score(1);
        } else if (word == "twice") {
          plugin::v1::ScoreResponse first = response;
          first.add_results()->set_score(1);
          stream->Write(first);
          response.add_results()->set_score(0);
        } else if (word == "other") {
          response.set_id(1000000);
        } else if (word == "long") {
          response.add_results()->set_info(std::string(17 << 20, 'x'));
        } else if (word == "version") {
          response.set_version(value);
          response.add_results()->set_score(1);
        } else if (word == "hold") {  // Answered after the next one, in the wrong order.
          response.add_results()->set_score(std::stod(value));
          held.push_back(response);
          answer = false;
        } else if (word == "count") {
          for (int i = 0; i < std::stoi(value); ++i) response.add_results()->set_score(1);
        } else if (word == "score") {
          // Of a long text of digits as well; "nan" and "inf" are numbers here.
          response.add_results()->set_score(
              response.version() == "broken" ? -1 : std::strtod(value.c_str(), nullptr));
        } else if (word == "version_as_score") {
          response.add_results()->set_score(std::strtod(response.version().c_str(), nullptr));
        } else if (word == "raw") {
          const nlohmann::json raw = nlohmann::json::parse(value);
          plugin::v1::ScoreResult& result = *response.add_results();
          if (raw.contains("error")) result.set_error(raw["error"].get<std::string>());
          if (raw.contains("score") && raw["score"].is_number())
            result.set_score(raw["score"].get<double>());
        } else if (word == "echo") {  // 1 if the item is as it should be.
          response.add_results()->set_score(
              request.job() == "digits" && request.config() == config.dump() &&
              item.ground_truth() == "\"7\"" && item.prompt() == "3+4" && item.truncated() &&
              item.data_source() == "sums" && item.extra_info() == R"({"level":2})");
        }
      }
      if (!answer) continue;
      stream->Write(response);
      for (const plugin::v1::ScoreResponse& other : held) stream->Write(other);
      held.clear();
    }
    return grpc::Status::OK;
  }

 private:
  static std::string VersionOf(const nlohmann::json& config) {
    const std::string file = config.value("version_file", "");
    return file.empty() ? "1" : ReadFile(file).value_or("no version");
  }

  // Makes a file. False: it was there.
  static bool TakeMark(const std::string& path) {
    const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }

  // Answers nothing until the caller ends the stream.
  static grpc::Status Drain(Stream* stream) {
    plugin::v1::ScoreRequest request;
    while (stream->Read(&request)) continue;
    return grpc::Status::OK;
  }
};

}  // namespace sluice
