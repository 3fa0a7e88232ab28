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

// The head of a request, whose body has not been read yet.
struct RequestHead {
  absl::string_view method, target;  // "POST", "/v1/completions". What follows a "?" is ignored.
  absl::string_view host;            // HOST or HOST:PORT; empty if there is no such header.
  absl::string_view authorization;   // Value of the header; empty if there is none.
  absl::string_view content_type, content_encoding;
  int64_t content_length = -1;  // -1 if not given.
};

// What a request asks for, and who asks.
struct Route {
  enum Kind { kLive, kReady, kModels, kModel, kCompletions, kChat } kind = kLive;
  std::string model;  // Set for kModel.
  // Null if the server has no keys, and for kLive and kReady.
  std::shared_ptr<const Tenant> tenant;
  bool has_body() const { return kind == kCompletions || kind == kChat; }
};

struct Response {
  int status = 200;
  std::string body;
  std::string allow;    // Set for status 405: the header Allow.
  int retry_after = 0;  // Seconds, for the header Retry-After; 0 for none.
  bool json = true;     // False: plain text.
};

// How the answer to one call is sent: either Send() once, or BeginStream(), any number of Write()s
// and End(). The API calls it on its thread. It must neither block nor call the API.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual void Send(Response response) = 0;
  virtual void BeginStream() = 0;  // Status 200, text/event-stream.
  virtual void Write(std::string events) = 0;
  virtual void End() = 0;
};

struct ApiMetrics {
  ApiMetrics() = default;
  explicit ApiMetrics(metrics::Registry* registry);
  metrics::Counter answered, refused, failed, left;  // Number of calls, by how they ended.
  metrics::Counter prompt_tokens, completion_tokens;
  metrics::Gauge answers;  // Number of answers that are being sampled.
};

// The OpenAI-compatible API without its sockets: it turns HTTP requests into requests to the
// engine, and the engine's events into responses.
//
// Runs on one thread, that of Options::post. Only SetModel(), RemoveModel() and Drain() may be
// called from any thread. Parsing, rendering and encoding run on Options::work.
class Api {
 public:
  using Run = std::function<void(std::function<void()>)>;
  struct Options {
    const Keys* keys = nullptr;                    // Null: no key is needed.
    Guests* guests = nullptr;                      // Takes the requests to the engines.
    absl::Duration heartbeat = absl::Seconds(15);  // The longest time without a byte on a stream.
    Clock* clock = nullptr;
    std::function<uint64_t()> random;  // Random seeds, for requests that give none, and ids.
    // `work` runs a function on some other thread, `post` on the API's.
    Run work, post;
    ApiMetrics metrics;
  };
  // All that `options` points to outlives the API.
  explicit Api(Options options) : options_(std::move(options)) {}
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // Adds a model, in place of one of the same name.
  void SetModel(std::shared_ptr<Model> model);
  // Removes a model. Its calls end with `why`.
  void RemoveModel(const std::string& name, absl::Status why);
  // Refuses new calls from now on with 503.
  void Drain();

  // Decides whether a request is accepted, by its head alone, before any of the body is read.
  // Errors are made by Refuse(): 401, 404, 405, 411, 413, 415, 503.
  absl::StatusOr<Route> RouteRequest(const RequestHead& head) const;
  // Answers an accepted request through `reply`, before this returns or later. Returns the call's
  // id for Cancel(), or 0 if it is answered already.
  uint64_t Handle(const Route& route, std::string body, std::shared_ptr<Reply> reply);
  // Says that the client is gone. The call's answers are aborted before the engine's next step.
  // Does nothing if the call is unknown or has ended.
  void Cancel(uint64_t call);
  // Writes a comment to silent streams. Call it about every second.
  void Tick();

  size_t calls() const { return calls_.size(); }
  uint32_t answers() const { return answers_; }

 private:
  struct Call {
    std::shared_ptr<const Tenant> tenant;
    std::shared_ptr<Reply> reply;
    // Null while the call is prepared; the members below are set after that.
    std::shared_ptr<Model> model;
    Prepared prepared;
    ResponseHead head;
    PolicyVersion version;          // The version that sampled the last token.
    uint64_t guest = 0;             // Number in Guests; answer i is that guest's request i.
    std::vector<AnswerPart> parts;  // By answer: what has not been sent yet.
    // By answer, for a chat with tools if there is a parser for the model; else empty.
    std::vector<std::unique_ptr<ToolCallParser>> parsers;
    std::vector<bool> begun;  // By answer, of a stream: its first chunk has been sent.
    // By answer: the prompt has been put into its part. Empty if the prompt's log-probs are not
    // asked for.
    std::vector<bool> echoed;
    size_t open = 0;            // Number of answers that are not finished.
    uint64_t sampled = 0;       // Number of tokens sampled.
    bool streaming = false;     // BeginStream() has been called.
    absl::Duration last_write;  // Monotonic time of the last write.
  };
  using Calls = absl::flat_hash_map<uint64_t, std::unique_ptr<Call>>;

  absl::StatusOr<std::shared_ptr<Model>> FindModel(const std::string& name) const;
  Response ModelsResponse(const Route& route) const;
  // Starts sampling for a prepared call, or fails the call.
  void StartCall(uint64_t id, absl::StatusOr<Prepared> prepared,
                 const std::shared_ptr<Model>& model);
  absl::Status CheckQuota(const Call& call, size_t answers) const;
  void AddRequests(uint64_t id, Call* call);
  // Takes what one step of the engine did for the call, or why its requests failed. It runs on the
  // threads that call a Guests::Sink, perhaps on two at once.
  void OnStep(uint64_t id, StepEvents events) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeEvents() ABSL_LOCKS_EXCLUDED(mu_);
  void TakeStep(uint64_t id, const StepEvents& step);
  void TakeToken(uint64_t id, const TokenEvent& event);
  void TakeEcho(Call* call, size_t index, const TokenEvent& event);
  void TakeText(Call* call, size_t index, const TokenEvent& event);
  void SendPart(Call* call, size_t index);
  void Complete(uint64_t id);
  void Fail(uint64_t id, const absl::Status& why);
  void Forget(uint64_t id);  // Removes the call and aborts what still runs.
  void SetFingerprint(Call* call);

  const Options options_;
  std::map<std::string, std::shared_ptr<Model>> models_;
  Calls calls_;
  absl::flat_hash_map<std::string, uint32_t> tenant_answers_;  // Answers being sampled, by tenant.
  uint32_t answers_ = 0;
  uint64_t last_call_ = 0;
  bool draining_ = false;

  Mutex mu_;
  // Events with their calls' ids.
  std::vector<std::pair<uint64_t, StepEvents>> inbox_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice::rollout::http
