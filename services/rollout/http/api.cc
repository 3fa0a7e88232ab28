#include "services/rollout/http/api.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/loopback.h"
#include "common/base/status.h"
#include "common/chat/text.h"
#include "common/checkpoint/json.h"
#include "common/prompt/prompt.h"
#include "services/rollout/http/error.h"

namespace sluice::rollout::http {
namespace {

constexpr char kModelPath[] = "/v1/models/";

Response ErrorResponse(const absl::Status& status) {
  const ApiError error = ApiErrorOf(status);
  return {.status = error.status,
          .body = ErrorJson(error),
          .allow = error.allow,
          .retry_after = error.retry_after};
}

ModelEntry EntryOf(const Model& model) {
  ModelEntry entry{.name = model.name(),
                   .created = absl::ToUnixSeconds(model.loaded()),
                   .max_context = model.max_context()};
  if (const auto version = model.serving()) {
    entry.version = version->str();
    entry.digest = model.digest(*version);
  }
  return entry;
}

bool WantsTokens(const ApiRequest& request) {
  return request.logprobs || request.return_token_ids || request.return_versions;
}

// Without keys every process here may use the API, and a web page must not; see HostOfHeader().
bool IsThisHost(absl::string_view header) {
  return header.empty() || IsLoopback(HostOfHeader(header));
}

}  // namespace

ApiMetrics::ApiMetrics(metrics::Registry* registry) {
  const auto calls = [&](const char* end) {
    return registry->AddCounter("sluice_rollout_api_calls_total",
                                "Calls of the HTTP API that asked for answers, by how they ended.",
                                {{"end", end}});
  };
  answered = calls("answered");
  refused = calls("refused");
  failed = calls("failed");
  left = calls("left");
  prompt_tokens = registry->AddCounter("sluice_rollout_api_prompt_tokens_total",
                                       "Tokens of the API's prompts.");
  completion_tokens = registry->AddCounter("sluice_rollout_api_completion_tokens_total",
                                           "Tokens sampled for the API.");
  answers =
      registry->AddGauge("sluice_rollout_api_answers", "The API's answers that are being sampled.");
}

// Any thread. -------------------------------------------------------------------------------------

void Api::SetModel(std::shared_ptr<Model> model) {
  options_.post([this, model = std::move(model)] { models_[model->name()] = model; });
}

void Api::RemoveModel(const std::string& name, absl::Status why) {
  options_.post([this, name, why = std::move(why)] {
    const auto model = models_.find(name);
    if (model == models_.end()) return;
    std::vector<uint64_t> orphans;
    for (const auto& [id, call] : calls_) {
      if (call->model == model->second) orphans.push_back(id);
    }
    models_.erase(model);
    for (uint64_t id : orphans) Fail(id, why);
  });
}

void Api::OnStep(uint64_t id, StepEvents events) {
  {
    MutexLock lock(&mu_);
    inbox_.emplace_back(id, std::move(events));
    if (inbox_.size() > 1) return;  // TakeEvents() has been posted already.
  }
  options_.post([this] { TakeEvents(); });
}

void Api::Drain() {
  options_.post([this] { draining_ = true; });
}

// Requests. ---------------------------------------------------------------------------------------

absl::StatusOr<Route> Api::RouteRequest(const RequestHead& head) const {
  const absl::string_view path = head.target.substr(0, head.target.find('?'));
  Route route;
  bool post = false;
  if (path == "/livez" || path == "/readyz") {
    route.kind = path == "/livez" ? Route::kLive : Route::kReady;
  } else {
    if (options_.keys != nullptr) {
      route.tenant = options_.keys->Find(head.authorization);
      if (route.tenant == nullptr) {
        return Refuse(401, "invalid_api_key", "",
                      head.authorization.empty()
                          ? "no key: send the header Authorization: Bearer KEY"
                          : "this key is not known here");
      }
    } else if (!IsThisHost(head.host)) {
      return Refuse(403, "foreign_host", "",
                    absl::StrCat("the header Host names \"", Printable(head.host),
                                 "\"; without keys the API answers to localhost, 127.0.0.1 and "
                                 "[::1] alone: use one of them, or start the daemon with "
                                 "--http-keys"));
    }
    if (path == "/v1/models") {
      route.kind = Route::kModels;
    } else if (absl::StartsWith(path, kModelPath)) {
      route.kind = Route::kModel;
      route.model = std::string(absl::StripPrefix(path, kModelPath));
    } else if (path == "/v1/completions" || path == "/v1/chat/completions") {
      route.kind = path == "/v1/completions" ? Route::kCompletions : Route::kChat;
      post = true;
    } else {
      return Refuse(404, "unknown_url", "",
                    "there is no such path here; use GET /v1/models, POST /v1/completions or POST "
                    "/v1/chat/completions");
    }
  }

  const bool allowed = post ? head.method == "POST" : head.method == "GET" || head.method == "HEAD";
  if (!allowed)
    return RefuseMethod(post ? "POST" : "GET, HEAD",
                        absl::StrCat("this path takes ", post ? "POST" : "GET"));
  if (!post) return route;
  const absl::string_view media_type =
      absl::StripAsciiWhitespace(head.content_type.substr(0, head.content_type.find(';')));

  // A web page of another site cannot send this type without asking first (CORS), so it cannot use
  // the API through a user's browser.
  if (!absl::EqualsIgnoreCase(media_type, "application/json")) {
    return Refuse(415, "unsupported_media_type", "",
                  "the body must be JSON: send the header Content-Type: application/json");
  }
  if (!head.content_encoding.empty() &&
      !absl::EqualsIgnoreCase(head.content_encoding, "identity")) {
    return Refuse(
        415, "unsupported_encoding", "",
        absl::StrCat("Content-Encoding is ", absl::CHexEscape(head.content_encoding.substr(0, 80)),
                     "; the body must come as it is, without that header"));
  }

  if (head.content_length < 0)
    return Refuse(411, "length_required", "", "the body must come with a Content-Length");
  if (head.content_length > static_cast<int64_t>(kMaxBody)) {
    return Refuse(413, "request_too_large", "",
                  absl::StrCat("the body has ", head.content_length, " bytes; at most ", kMaxBody,
                               " are taken"));
  }

  if (draining_)
    return Refuse(503, "draining", "",
                  "this server is shutting down; ask another one, or try again later");
  return route;
}

absl::StatusOr<std::shared_ptr<Model>> Api::FindModel(const std::string& name) const {
  if (models_.empty())
    return Refuse(503, "no_model_loaded", "", "no model is loaded: this daemon has no job yet");
  const auto found = models_.find(name);
  if (found == models_.end()) {
    return Refuse(
        404, "model_not_found", "model",
        absl::StrCat("there is no model ", name.substr(0, 80), " here, only ",
                     absl::StrJoin(models_, ", ", [](std::string* out, const auto& model) {
                       out->append(model.first);
                     })));
  }
  if (!found->second->serving())
    return Refuse(503, "no_weights", "model",
                  absl::StrCat("model ", name, " has no published weights yet"));
  return found->second;
}

Response Api::ModelsResponse(const Route& route) const {
  if (route.kind == Route::kModel) {
    const auto model = FindModel(route.model);
    return model.ok() ? Response{.body = ModelJson(EntryOf(**model))}
                      : ErrorResponse(model.status());
  }
  std::vector<ModelEntry> entries;
  for (const auto& [name, model] : models_) {
    if (model->serving()) entries.push_back(EntryOf(*model));
  }
  if (entries.empty())
    return ErrorResponse(
        Refuse(503, "no_model_loaded", "",
               "no model is loaded: this daemon has no job, or no published weights yet"));
  return {.body = ModelsJson(entries)};
}

uint64_t Api::Handle(const Route& route, std::string body, std::shared_ptr<Reply> reply) {
  switch (route.kind) {
    case Route::kLive: reply->Send({.body = "ok\n", .json = false}); return 0;
    case Route::kReady:
      reply->Send(draining_ || models_.empty()
                      ? Response{.status = 503,
                                 .body = draining_ ? "draining\n" : "no model is loaded\n",
                                 .json = false}
                      : Response{.body = "ok\n", .json = false});
      return 0;
    case Route::kModels:
    case Route::kModel: reply->Send(ModelsResponse(route)); return 0;
    case Route::kCompletions:
    case Route::kChat: break;
  }

  const uint64_t id = ++last_call_;
  auto call = std::make_unique<Call>();
  call->tenant = route.tenant;
  call->reply = std::move(reply);
  calls_.emplace(id, std::move(call));
  options_.work([this, id, chat = route.kind == Route::kChat, body = std::move(body)] {
    absl::StatusOr<ApiRequest> request = chat ? ParseChat(body) : ParseCompletion(body);
    if (!request.ok())
      return options_.post(
          [this, id, status = request.status()] { StartCall(id, status, nullptr); });
    // Models are looked up on the API's thread. The part that takes long goes back to `work`.
    auto parsed = std::make_shared<ApiRequest>(*std::move(request));
    options_.post([this, id, parsed] {
      absl::StatusOr<std::shared_ptr<Model>> model = FindModel(parsed->model);
      if (!model.ok()) return StartCall(id, model.status(), nullptr);
      options_.work([this, id, parsed, model = *std::move(model)] {
        auto prepared =
            std::make_shared<absl::StatusOr<Prepared>>(Prepare(std::move(*parsed), *model));
        options_.post([this, id, prepared, model] { StartCall(id, std::move(*prepared), model); });
      });
    });
  });
  return id;
}

// Checks the tenant's quota. The limit of the whole daemon is checked by Guests.
absl::Status Api::CheckQuota(const Call& call, size_t answers) const {
  if (call.tenant == nullptr || call.tenant->most_answers == 0) return absl::OkStatus();
  const auto held = tenant_answers_.find(call.tenant->name);
  const uint32_t has = held == tenant_answers_.end() ? 0 : held->second;
  if (has + answers <= call.tenant->most_answers) return absl::OkStatus();
  if (answers > call.tenant->most_answers) {  // Waiting would not help.
    return Refuse(400, "quota_exceeded", "n",
                  absl::StrCat(answers, " answers are asked for; the quota of ", call.tenant->name,
                               " is ", call.tenant->most_answers, " at once"));
  }
  return Refuse(
      429, "quota_exceeded", "",
      absl::StrCat(has, " answers of ", call.tenant->name, " are being sampled and ", answers,
                   " more are asked for; its quota is ", call.tenant->most_answers));
}

void Api::StartCall(uint64_t id, absl::StatusOr<Prepared> prepared,
                    const std::shared_ptr<Model>& model) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;  // The client has left meanwhile.
  if (!prepared.ok()) return Fail(id, prepared.status());
  Call* const call = it->second.get();
  const size_t answers = prepared->answers();
  absl::Status room = CheckQuota(*call, answers);

  // The model may have been removed or replaced while the prompt was prepared.
  if (const auto now = FindModel(model->name()); room.ok() && (!now.ok() || *now != model)) {
    room = now.ok() ? Refuse(503, "model_replaced", "model",
                             "the model was loaded again meanwhile; ask again")
                    : now.status();
  }
  if (room.ok() && draining_)
    room = Refuse(503, "draining", "",
                  "this server is shutting down; ask another one, or try again later");
  if (!room.ok()) return Fail(id, room);

  call->model = model;
  call->prepared = *std::move(prepared);
  AddRequests(id, call);
}

void Api::AddRequests(uint64_t id, Call* call) {
  const ApiRequest& request = call->prepared.request;
  const size_t count = call->prepared.answers();
  call->head = {
      .id = absl::StrFormat("%s-%016x", request.chat ? "chatcmpl" : "cmpl", options_.random()),
      .created = absl::ToUnixSeconds(options_.clock->Now()),
      .model = call->model->name()};
  call->version = call->model->serving().value_or(PolicyVersion());
  SetFingerprint(call);

  call->open = count;
  call->parts.resize(count);
  call->begun.resize(count, false);
  if (request.echo && request.logprobs) call->echoed.resize(count, false);
  if (request.has_tools) {
    const absl::string_view parser = ToolCallParserOf(call->model->renderer().template_source());
    for (size_t i = 0; i < count && !parser.empty(); ++i)
      call->parsers.push_back(MakeToolCallParser(parser));
  }

  call->last_write = options_.clock->Monotonic();
  std::vector<Request> requests =
      MakeRequests(call->prepared, request.seed.value_or(options_.random()), RequestClass::kApi);
  for (size_t i = 0; i < count && request.echo && !request.logprobs; ++i)
    call->parts[i].text = call->prepared.prompts[i / request.n].text;

  answers_ += static_cast<uint32_t>(count);
  if (call->tenant != nullptr) tenant_answers_[call->tenant->name] += static_cast<uint32_t>(count);
  options_.metrics.answers.Set(answers_);

  const absl::StatusOr<uint64_t> guest =
      options_.guests->Add(call->model, std::move(requests),
                           [this, id](StepEvents events) { OnStep(id, std::move(events)); });
  if (!guest.ok()) return Fail(id, Refuse(429, "server_busy", "", guest.status().message()));
  call->guest = *guest;
  options_.metrics.prompt_tokens.Add(static_cast<double>(call->prepared.prompt_tokens));
}

// Events. -----------------------------------------------------------------------------------------

void Api::TakeEvents() {
  std::vector<std::pair<uint64_t, StepEvents>> steps;
  {
    MutexLock lock(&mu_);
    steps.swap(inbox_);
  }
  for (const auto& [id, step] : steps) TakeStep(id, step);
}

void Api::TakeStep(uint64_t id, const StepEvents& step) {
  for (const TokenEvent& event : step.tokens) {
    if (!calls_.contains(id)) return;  // The client has left.
    TakeToken(id, event);
  }
  for (const RequestFailure& failure : step.failures) Fail(id, failure.status);
}

void Api::TakeToken(uint64_t id, const TokenEvent& event) {
  Call* const call = calls_.at(id).get();
  const size_t index = event.request;
  AnswerPart& part = call->parts[index];
  if (!call->echoed.empty() && !call->echoed[index]) TakeEcho(call, index, event);
  if (!call->prepared.request.prompt_only) {
    TakeText(call, index, event);
    if (WantsTokens(call->prepared.request)) part.tokens.push_back(event);
    ++call->sampled;
  }

  part.finish = call->prepared.request.prompt_only ? FinishReason::kLength : event.finish;
  if (event.version != call->version) {
    call->version = event.version;
    SetFingerprint(call);
  }

  if (event.finish != FinishReason::kNone) --call->open;
  if (call->prepared.request.stream) SendPart(call, index);
  if (call->open == 0) Complete(id);
}

// Puts the prompt before the answer's first token; the event of that token has the prompt's
// log-probs.
void Api::TakeEcho(Call* call, size_t index, const TokenEvent& event) {
  call->echoed[index] = true;
  AnswerPart& part = call->parts[index];
  const Prepared::Prompt& prompt = call->prepared.prompts[index / call->prepared.request.n];
  part.text = prompt.text;
  for (size_t i = 0; i < prompt.ids->size(); ++i) {
    auto details = std::make_shared<TokenDetails>();
    TokenEvent token{.position = static_cast<uint32_t>(i), .token = (*prompt.ids)[i]};
    if (i > 0 && event.details != nullptr && i <= event.details->prompt_logprobs.size()) {
      token.logprob = details->raw_logprob = event.details->prompt_logprobs[i - 1];
      if (i <= event.details->prompt_top.size()) details->top = event.details->prompt_top[i - 1];
    }
    token.details = std::move(details);
    part.prompt.push_back(std::move(token));
  }
}

void Api::TakeText(Call* call, size_t index, const TokenEvent& event) {
  AnswerPart& part = call->parts[index];
  const absl::string_view text =
      event.details == nullptr ? absl::string_view() : event.details->text;
  if (call->parsers.empty()) {
    absl::StrAppend(&part.text, text);
    return;
  }
  call->parsers[index]->Push(text, &part.text, &part.calls);
  if (event.finish != FinishReason::kNone) call->parsers[index]->Finish(&part.text);
}

// Sends what was added to the answer, if the client can see any of it.
void Api::SendPart(Call* call, size_t index) {
  AnswerPart& part = call->parts[index];
  if (part.text.empty() && part.calls.empty() && part.tokens.empty() &&
      part.finish == FinishReason::kNone)
    return;
  if (!call->streaming) call->reply->BeginStream();
  call->streaming = true;

  const Format format(call->prepared, call->model->renderer().tokenizer());
  std::string chunk = format.Chunk(call->head, index, part, !call->begun[index]);
  call->begun[index] = true;
  call->last_write = options_.clock->Monotonic();
  const uint64_t characters = part.characters_before + chat::CountCodePoints(part.text);
  part = {.text = "",
          .characters_before = characters,
          .calls_before = part.calls_before + part.calls.size()};
  call->reply->Write(std::move(chunk));
}

void Api::Complete(uint64_t id) {
  Call* const call = calls_.at(id).get();
  const Format format(call->prepared, call->model->renderer().tokenizer());
  const Usage usage{.prompt_tokens = call->prepared.prompt_tokens,
                    .completion_tokens = call->sampled};
  const std::shared_ptr<Reply> reply = call->reply;
  if (!call->prepared.request.stream) {
    reply->Send({.body = format.Whole(call->head, call->parts, usage)});
  } else {
    std::string last =
        call->prepared.request.include_usage ? format.UsageChunk(call->head, usage) : "";
    last += Format::kDone;
    reply->Write(std::move(last));
    reply->End();
  }
  options_.metrics.answered.Add();
  Forget(id);
}

void Api::Fail(uint64_t id, const absl::Status& why) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const std::shared_ptr<Reply> reply = it->second->reply;
  const bool streaming = it->second->streaming;
  (ApiErrorOf(why).status < 500 ? options_.metrics.refused : options_.metrics.failed).Add();
  Forget(id);
  if (!streaming) return reply->Send(ErrorResponse(why));
  reply->Write(Format::ErrorChunk(why));
  reply->End();
}

void Api::Cancel(uint64_t id) {
  if (!calls_.contains(id)) return;
  options_.metrics.left.Add();
  Forget(id);
}

void Api::Forget(uint64_t id) {
  const auto it = calls_.find(id);
  const std::unique_ptr<Call> call = std::move(it->second);
  calls_.erase(it);
  if (call->model == nullptr) return;
  options_.guests->AbortGuest(call->guest);
  const uint32_t count = static_cast<uint32_t>(call->parts.size());
  SLUICE_CHECK(answers_ >= count);
  answers_ -= count;
  options_.metrics.answers.Set(answers_);
  options_.metrics.completion_tokens.Add(static_cast<double>(call->sampled));
  if (call->tenant == nullptr) return;
  const auto held = tenant_answers_.find(call->tenant->name);
  held->second -= count;
  if (held->second == 0) tenant_answers_.erase(held);
}

void Api::Tick() {
  const absl::Duration now = options_.clock->Monotonic();
  for (const auto& [id, call] : calls_) {
    if (call->model == nullptr || !call->prepared.request.stream ||
        now - call->last_write < options_.heartbeat)
      continue;
    if (!call->streaming) call->reply->BeginStream();
    call->streaming = true;
    call->last_write = now;
    call->reply->Write(Format::kComment);
  }
}

void Api::SetFingerprint(Call* call) {
  call->head.fingerprint =
      absl::StrCat(call->version.str(), "-", call->model->digest(call->version));
}

}  // namespace sluice::rollout::http
