#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "services/rollout/http/format.h"
#include "services/rollout/http/guests.h"
#include "services/rollout/http/keys.h"
#include "services/rollout/http/model.h"
#include "services/rollout/http/prepare.h"

namespace sluice {
class Clock;
}  // namespace sluice

namespace sluice::rollout::http {

// A request before its body is read.
struct RequestHead {
  absl::string_view method, target;  // "POST", "/v1/completions"; what follows a ? is ignored.
  absl::string_view authorization;   // The header's value; empty: none.
  absl::string_view content_type, content_encoding;
  int64_t content_length = -1;  // -1: not given.
};

// Where a request goes.
struct Route {
  enum Kind { kLive, kReady, kModels, kModel, kCompletions, kChat } kind = kLive;
  std::string model;  // Of kModel.
  std::shared_ptr<const Tenant> tenant;
  bool has_body() const { return kind == kCompletions || kind == kChat; }
};

struct Response {
  int status = 200;
  std::string body;
  std::string allow;    // Of a 405.
  int retry_after = 0;  // Seconds; 0: no such header.
  bool json = true;     // False: plain text.
};

// The way out of one call's answer: Send() once, or BeginStream(), Write()s and End(). Called on
// the API's thread; must neither block nor call the API.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void Send(Response response) = 0;
  virtual void BeginStream() = 0;  // 200, text/event-stream.
  virtual void Write(std::string events) = 0;
  virtual void End() = 0;
};

struct ApiMetrics {
  ApiMetrics() = default;
  explicit ApiMetrics(metrics::Registry* registry);
  metrics::Counter answered, refused, failed, left;  // Calls, by how they ended.
  metrics::Counter prompt_tokens, completion_tokens;
  metrics::Gauge answers;  // Being sampled.
};

// The OpenAI-compatible surface without its sockets: requests become the engine's, its events
// responses.
//
// Runs on one thread, that of `post`, but for SetModel, RemoveModel and Drain, which any thread may
// call. Parsing, rendering and encoding run on `work`.
class Api {
 public:
  using Run = std::function<void(std::function<void()>)>;
  struct Options {
    const Keys* keys = nullptr;                    // Null: everybody may ask.
    Guests* guests = nullptr;                      // Through whom it asks the engines.
    absl::Duration heartbeat = absl::Seconds(15);  // A stream is silent for so long at most.
    Clock* clock = nullptr;
    std::function<uint64_t()> random;  // Seeds of requests that give none.
    Run work, post;
    ApiMetrics metrics;
  };
  // What `options` points to outlives the API.
  explicit Api(Options options) : options_(std::move(options)) {}
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // Takes the place of a model of the same name.
  void SetModel(std::shared_ptr<Model> model);
  // Its calls end with `why`.
  void RemoveModel(const std::string& name, absl::Status why);
  // Takes no more calls: 503.
  void Drain();

  // By the head alone, before any of the body is read. Errors as Refuse() makes them: 401, 404,
  // 405, 411, 413, 415, 503.
  absl::StatusOr<Route> Admit(const RequestHead& head) const;
  // Answers through `reply`, now or later. The call's id, for Cancel().
  uint64_t Handle(const Route& route, std::string body, std::shared_ptr<Reply> reply);
  // The client is gone: what it asked for is aborted before the next step. Unknown or ended:
  // nothing happens.
  void Cancel(uint64_t call);
  // Comments on silent streams; to be called about every second.
  void Tick();

  size_t calls() const { return calls_.size(); }
  uint32_t answers() const { return answers_; }

 private:
  struct Call {
    std::shared_ptr<const Tenant> tenant;
    std::shared_ptr<Reply> reply;
    std::shared_ptr<Model> model;  // Null: being prepared, as are the members behind it.
    Prepared prepared;
    ResponseHead head;
    PolicyVersion version;          // Of the last token.
    uint64_t guest = 0;             // Of whom answer i is request i.
    std::vector<AnswerPart> parts;  // What is not sent.
    // By answer, of a chat with tools that the model has a parser for; else empty.
    std::vector<std::unique_ptr<ToolCallParser>> parsers;
    std::vector<bool> begun;  // Streams: the answer's first chunk is out.
    // Where the prompt's log-probs are told: it is among the parts.
    std::vector<bool> echoed;
    size_t open = 0;            // Answers that go on.
    uint64_t sampled = 0;       // Tokens.
    bool streaming = false;     // The stream has begun.
    absl::Duration last_write;  // Monotonic.
  };
  using Calls = absl::flat_hash_map<uint64_t, std::unique_ptr<Call>>;

  absl::StatusOr<std::shared_ptr<Model>> FindModel(const std::string& name) const;
  Response ModelsResponse(const Route& route) const;
  void Begin(uint64_t id, absl::StatusOr<Prepared> prepared, const std::shared_ptr<Model>& model);
  absl::Status CheckRoom(const Call& call, size_t answers) const;
  void AddRequests(uint64_t id, Call* call);
  // What the engine did for the call; on its thread.
  void Stepped(uint64_t id, StepEvents events) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeEvents() ABSL_LOCKS_EXCLUDED(mu_);
  void TakeStep(uint64_t id, const StepEvents& step);
  void TakeToken(uint64_t id, const TokenEvent& event);
  void TakeEcho(Call* call, size_t index, const TokenEvent& event);
  void TakeText(Call* call, size_t index, const TokenEvent& event);
  void Emit(Call* call, size_t index);
  void Complete(uint64_t id);
  void Fail(uint64_t id, const absl::Status& why);
  void Forget(uint64_t id);  // Aborts what still runs.
  void SetFingerprint(Call* call);

  const Options options_;
  std::map<std::string, std::shared_ptr<Model>> models_;
  Calls calls_;
  absl::flat_hash_map<std::string, uint32_t> tenant_answers_;  // Being sampled.
  uint32_t answers_ = 0;
  uint64_t last_call_ = 0;
  bool draining_ = false;

  Mutex mu_;
  std::vector<std::pair<uint64_t, StepEvents>> inbox_ ABSL_GUARDED_BY(mu_);  // By call.
};

}  // namespace sluice::rollout::http
