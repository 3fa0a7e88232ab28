// Fuzzes the HTTP API with any bytes as the body of a request. The result is a valid request,
// or a 400 that says what is wrong. Each accepted request is prepared for a model whose template
// reads all of its fields, and is answered as it asks: as a whole or as a stream.
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"
#include "services/rollout/http/api.h"
#include "services/rollout/http/error.h"
#include "tests/fuzz/target.h"
#include "tests/services/rollout/http/fake_model.h"

namespace sluice::fuzz {
namespace {
using namespace rollout::http;  // NOLINT: this file is about nothing else.

constexpr char kTemplate[] =
    "{% for m in messages %}{{ m.role }}{{ m.content }}{% if m.tool_calls %}{% for c in "
    "m.tool_calls %}{{ c | tojson }}{% endfor %}{% endif %}{% endfor %}"
    "{{ tools | tojson if tools else '' }}=";

// Receives what a client would see, and checks that it is well formed.
class CheckingReply : public Reply {
 public:
  void Send(Response response) override {
    SLUICE_CHECK(!sent && !began);
    sent = true;
    status = response.status;
    SLUICE_CHECK(nlohmann::json::accept(response.body));
  }
  void BeginStream() override {
    SLUICE_CHECK(!sent && !began);
    began = true;
  }
  void Write(std::string) override { SLUICE_CHECK(began && !ended); }
  void End() override { ended = true; }
  bool sent = false, began = false, ended = false;
  int status = 200;
};

std::shared_ptr<FakeModel> MakeModel() {
  const std::string path = testing_data::TempPath("fuzz_template.jinja");
  SLUICE_CHECK(WriteFileAtomic(path, kTemplate).ok());
  auto model = std::make_shared<FakeModel>("digits", path);
  (void)RemoveTree(path);
  return model;
}

void SendRequest(Api* api, Guests* guests, FakeModel* model, const char* path,
                 absl::string_view body) {
  auto reply = std::make_shared<CheckingReply>();
  const auto route = api->RouteRequest({.method = "POST",
                                        .target = path,
                                        .content_type = "application/json",
                                        .content_length = static_cast<int64_t>(body.size())});
  SLUICE_CHECK(route.ok() == (body.size() <= kMaxBody));
  if (!route.ok()) return;
  const size_t before = model->AwaitRequests(0).size();
  const uint64_t call = api->Handle(*route, std::string(body), reply);
  const std::vector<Request> requests = model->AwaitRequests(0);

  if (requests.size() == before) {
    SLUICE_CHECK(reply->sent &&
                 (reply->status == 400 || reply->status == 404 || reply->status == 429));
    return;
  }

  SLUICE_CHECK(!reply->sent && requests.size() - before <= kMaxAnswers);
  // One request in three is cancelled. The size decides, so that an input always does the same.
  if (body.size() % 3 == 0) api->Cancel(call);
  StepEvents step;
  for (size_t i = before; i < requests.size(); ++i) {
    SLUICE_CHECK(!requests[i].prompt->empty() && requests[i].sampling.max_tokens >= 1 &&
                 requests[i].prompt->size() + requests[i].sampling.max_tokens <=
                     model->max_context());
    step.tokens.push_back(Sampled(requests[i].id, 5, "2"));
    step.tokens.push_back(Sampled(requests[i].id, 63, "\xF0\x9F", FinishReason::kStop));
  }

  guests->DeliverEvents(std::move(step));
  SLUICE_CHECK(body.size() % 3 == 0 || reply->sent || reply->ended);
  SLUICE_CHECK(api->calls() == 0 && api->answers() == 0 && guests->running() == 0);
}
}  // namespace

void Run(absl::string_view input) {
  static const std::shared_ptr<FakeModel> model = MakeModel();
  ManualClock clock;
  Guests guests;
  Api api({.guests = &guests,
           .clock = &clock,
           .random = [] { return uint64_t{7}; },
           .work = [](std::function<void()> run) { run(); },
           .post = [](std::function<void()> run) { run(); }});
  api.SetModel(model);
  SendRequest(&api, &guests, model.get(), "/v1/completions", input);
  SendRequest(&api, &guests, model.get(), "/v1/chat/completions", input);
  model->Clear();
}

std::vector<std::string> Seeds() {
  return {
      R"({"model":"digits","prompt":"12=","max_tokens":4,"temperature":0.7,"top_p":1,"n":2,)"
      R"("seed":7,"stream":false,"stop":["9"],"echo":true})",
      R"({"model":"digits","prompt":["1=","2="],"logprobs":0,"stream":true,)"
      R"("stream_options":{"include_usage":true},"return_token_ids":true})",
      R"({"model":"digits","prompt":[[1,4,13],[5]],"return_versions":true,"min_tokens":1,)"
      R"("ignore_eos":true,"stop_token_ids":[3],"logprobs_mode":"raw"})",
      R"({"model":"digits","messages":[{"role":"user","content":"12"}],)"
      R"("max_completion_tokens":4,"logprobs":true,"top_logprobs":3})",
      R"({"model":"digits","messages":[{"role":"system","content":[{"type":"text",)"
      R"("text":"a"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c",)"
      R"("type":"function","function":{"name":"f","arguments":"{\"a\":[1]}"}}]},{"role":"tool",)"
      R"("content":"2","tool_call_id":"c"}],"tools":[{"type":"function","function":{"name":"f",)"
      R"("parameters":{}}}],"tool_choice":"auto","chat_template_kwargs":{"x":true}})",
      R"({"model":"digits","messages":[{"role":"user","content":"1"},{"role":"assistant",)"
      R"("content":" 34 "}],"continue_final_message":true,"stream":true})",
      R"({"model":"other","prompt":[],"n":1e9,"max_tokens":-1})",
      R"([{"model":[[[[[[[[[[]]]]]]]]]]}])",
  };
}

}  // namespace sluice::fuzz
