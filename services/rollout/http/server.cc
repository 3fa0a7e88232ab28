#include "services/rollout/http/server.h"

#include <pthread.h>
#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/log/log.h"
#include "services/rollout/http/error.h"

namespace sluice::rollout::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace web = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using TlsStream = asio::ssl::stream<tcp::socket>;

constexpr uint32_t kMaxHead = 16 << 10;  // Most bytes of a request's headers.
// Most bytes that a client may send ahead, before the answer to its last request is sent.
constexpr size_t kMaxEarly = 64 << 10;
// Size of the kernel's send buffer of a connection, in bytes. It is small, because what a slow
// reader has not taken is noticed only when this buffer is full.
constexpr int kSendBuffer = 256 << 10;
// Longest time for a client to close the connection after the last answer; see Linger().
constexpr absl::Duration kLinger = absl::Seconds(2);
constexpr std::chrono::milliseconds kTick(100);  // Time between two checks of all deadlines.

absl::string_view View(beast::string_view text) { return {text.data(), text.size()}; }
absl::Duration Now() { return Clock::Real()->Monotonic(); }

// A connection, as the server uses it. All calls are on the server's thread.
class Link {
 public:
  virtual ~Link() = default;
  virtual void Start() = 0;
  virtual void Tick(absl::Duration now) = 0;
  virtual bool busy() const = 0;  // A call is under way, or bytes wait to be sent.
  virtual void CloseNow() = 0;    // Closes at once and aborts the call's answers.
};

// What all connections share.
struct Hub {
  const Server::Options options;
  asio::io_context io{1};
  asio::thread_pool pool;
  std::unique_ptr<Api> api;
  std::map<Link*, std::shared_ptr<Link>> links;
  // Bytes of all bodies, from the headers of their requests until the calls are answered: the
  // prompts that are made from a body stay in memory as long.
  uint64_t bodies = 0;

  explicit Hub(const Server::Options& o) : options(o), pool(static_cast<size_t>(o.workers)) {}
};

template <typename Stream>
class Connection : public Link,
                   public Reply,
                   public std::enable_shared_from_this<Connection<Stream>> {
 public:
  static constexpr bool kTls = std::is_same_v<Stream, TlsStream>;

  Connection(Hub* hub, Stream stream) : hub_(hub), stream_(std::move(stream)) {}

  void Start() override {
    SetDeadline(hub_->options.head_time);
    if constexpr (kTls) {
      stream_.async_handshake(asio::ssl::stream_base::server, [self = Self()](error_code error) {
        if (error) return self->CloseNow();
        self->ReadHead(self->hub_->options.head_time);
      });
    } else {
      ReadHead(hub_->options.head_time);
    }
  }

  bool busy() const override { return call_ != 0 || writing_ || state_ == State::kBody; }

  void Tick(absl::Duration now) override {
    if (now < deadline_) return;
    if (state_ == State::kHead && parser_ && parser_->got_some())
      return SendError(Refuse(408, "timeout", "", "the request's headers took too long"),
                       /*reading=*/true);
    if (state_ == State::kBody)
      return SendError(Refuse(408, "timeout", "", "the request's body took too long"),
                       /*reading=*/true);
    CloseNow();
  }

  void CloseNow() override {
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    if (call_ != 0) hub_->api->Cancel(std::exchange(call_, 0));
    ReleaseBody();
    error_code ignored;
    Socket().close(ignored);
    hub_->links.erase(this);  // Pending handlers keep this object alive.
  }

  // Reply: the answer. ----------------------------------------------------------------------------

  void Send(Response response) override {
    web::response<web::empty_body> head{static_cast<web::status>(response.status), version_};
    head.set(web::field::content_type, response.json ? "application/json" : "text/plain");
    head.set(web::field::cache_control, "no-store");
    if (!response.allow.empty()) head.set(web::field::allow, response.allow);
    if (response.retry_after > 0)
      head.set(web::field::retry_after, absl::StrCat(response.retry_after));
    if (response.status == 401) head.set(web::field::www_authenticate, "Bearer");
    head.content_length(response.body.size());
    head.keep_alive(keep_alive_);
    Queue(bodiless_ ? HeadText(head) : HeadText(head) + response.body);
    OnAnswerComplete();
  }

  void BeginStream() override {
    web::response<web::empty_body> head{web::status::ok, version_};
    head.set(web::field::content_type, "text/event-stream");
    head.set(web::field::cache_control, "no-store");
    chunked_ = version_ >= 11;
    if (!chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection ends the body.
    head.chunked(chunked_);
    head.keep_alive(keep_alive_);
    Queue(HeadText(head));
  }

  void Write(std::string events) override {
    if (out_.size() + pending_.size() - sent_ > hub_->options.most_behind) {
      if (std::exchange(cut_, true)) return;
      log::Info("api_reader_cut_off", {{"bytes_behind", out_.size() + pending_.size() - sent_}});
      // CloseNow() calls the API, which must not be called from here, so it runs later.
      asio::post(hub_->io, [self = Self()] { self->CloseNow(); });
      return;
    }
    Queue(chunked_ ? beast::buffers_to_string(web::make_chunk(asio::buffer(events)))
                   : std::move(events));
  }

  void End() override {
    if (chunked_) Queue(beast::buffers_to_string(web::make_chunk_last()));
    OnAnswerComplete();
  }

 private:
  // kHead: reading a request's headers, or waiting for them. kBody: reading its body. kCall: the
  // answer is made or sent. kLinger: the connection is closed slowly. kClosed: it is closed.
  enum class State { kHead, kBody, kCall, kLinger, kClosed };

  std::shared_ptr<Connection> Self() { return this->shared_from_this(); }
  tcp::socket& Socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }
  void SetDeadline(absl::Duration in) { deadline_ = Now() + in; }
  template <typename Head>
  static std::string HeadText(const Head& head) {
    std::ostringstream text;
    text << head.base();
    return std::move(text).str();
  }

  // Reading. --------------------------------------------------------------------------------------

  void ReadHead(absl::Duration time) {
    state_ = State::kHead;
    SetDeadline(time);
    keep_alive_ = bodiless_ = false;
    version_ = 11;
    parser_.emplace();
    parser_->header_limit(kMaxHead);
    parser_->body_limit(boost::none);  // Api::RouteRequest() checks it, with a message of its own.
    reading_ = true;
    web::async_read_header(stream_, buffer_, *parser_, [self = Self()](error_code error, size_t) {
      self->reading_ = false;
      if (self->state_ == State::kLinger) return self->Discard();
      if (self->state_ == State::kHead) self->OnHead(error);
    });
  }

  void OnHead(error_code error) {
    if (error == web::error::header_limit)
      return SendError(Refuse(431, "headers_too_large", "",
                              absl::StrCat("the headers exceed ", kMaxHead, " bytes")),
                       true);
    // The errors of Beast's parser have one category; others are those of the connection.
    const bool unparsable =
        error && error.category() == web::make_error_code(web::error::bad_method).category() &&
        error != web::error::end_of_stream && error != web::error::partial_message;
    if (unparsable)
      return SendError(Refuse(400, "bad_request", "",
                              absl::StrCat("this is not an HTTP request: ", error.message())),
                       true);
    if (error) return CloseNow();

    const auto& request = parser_->get();
    version_ = request.version();
    bodiless_ = request.method() == web::verb::head;
    RequestHead head{.method = View(request.method_string()),
                     .target = View(request.target()),
                     .host = View(request[web::field::host]),
                     .authorization = View(request[web::field::authorization]),
                     .content_type = View(request[web::field::content_type]),
                     .content_encoding = View(request[web::field::content_encoding])};
    if (const auto length = parser_->content_length())
      head.content_length = static_cast<int64_t>(*length > INT64_MAX ? INT64_MAX : *length);

    absl::StatusOr<Route> route = hub_->api->RouteRequest(head);
    const bool empty = parser_->is_done() || head.content_length == 0;
    if (!route.ok()) return SendError(route.status(), /*reading=*/!empty);
    keep_alive_ = request.keep_alive();
    if (!route->has_body()) {
      keep_alive_ = keep_alive_ && empty;
      return Call(*route, "");
    }
    ReadBody(*std::move(route), static_cast<uint64_t>(head.content_length));
  }

  void ReadBody(Route route, uint64_t length) {
    if (hub_->bodies + length > hub_->options.most_bodies) {
      return SendError(
          Refuse(429, "server_busy", "",
                 absl::StrCat("the calls that are not answered yet have bodies of ", hub_->bodies,
                              " bytes, and this one has ", length, "; the limit is ",
                              hub_->options.most_bodies, " bytes together: ask again later")),
          true);
    }

    body_ = length;
    hub_->bodies += length;
    state_ = State::kBody;
    SetDeadline(hub_->options.body_time);
    parser_->body_limit(kMaxBody);
    if (absl::EqualsIgnoreCase(View(parser_->get()[web::field::expect]), "100-continue")) {
      Queue(HeadText(web::response<web::empty_body>{web::status::continue_, version_}));
    }

    reading_ = true;
    web::async_read(stream_, buffer_, *parser_,
                    [self = Self(), route = std::move(route)](error_code error, size_t) {
                      self->reading_ = false;
                      if (self->state_ == State::kLinger) return self->Discard();
                      if (self->state_ != State::kBody) return;
                      if (error) return self->CloseNow();
                      self->Call(route, std::move(self->parser_->get().body()));
                    });
  }

  void ReleaseBody() {
    SLUICE_CHECK(hub_->bodies >= body_);
    hub_->bodies -= std::exchange(body_, 0);
  }

  void Call(const Route& route, std::string body) {
    state_ = State::kCall;
    deadline_ = absl::InfiniteDuration();
    answered_ = chunked_ = false;
    const uint64_t call = hub_->api->Handle(route, std::move(body), Self());
    if (answered_) return;
    call_ = call;
    Listen();
  }

  // Reads while the answer is made, to notice when the client leaves.
  void Listen() {
    reading_ = true;
    stream_.async_read_some(buffer_.prepare(4096), [self = Self()](error_code error, size_t bytes) {
      self->reading_ = false;
      if (self->state_ == State::kClosed) return;
      const bool interrupted =
          error == asio::error::operation_aborted && self->state_ == State::kHead;
      if (error && !interrupted) return self->CloseNow();
      self->buffer_.commit(bytes);
      if (self->state_ == State::kHead) return self->ReadHead(self->hub_->options.head_time);
      if (self->state_ == State::kLinger) return self->Discard();
      if (self->buffer_.size() > kMaxEarly) return self->CloseNow();
      self->Listen();
    });
  }

  // Writing. --------------------------------------------------------------------------------------

  // Answers with an error. `reading` says that a part of the request is unread, so that the
  // connection cannot be used again.
  void SendError(const absl::Status& why, bool reading) {
    const ApiError error = ApiErrorOf(why);
    keep_alive_ = !reading && parser_ && parser_->is_header_done() && parser_->get().keep_alive();
    state_ = State::kCall;
    chunked_ = false;
    Send({.status = error.status,
          .body = ErrorJson(error),
          .allow = error.allow,
          .retry_after = error.retry_after});
  }

  void Queue(std::string bytes) {
    if (pending_.empty()) {
      pending_ = std::move(bytes);
    } else {
      pending_ += bytes;
    }
    if (!writing_) WriteNext();
  }

  void WriteNext() {
    if (sent_ == out_.size()) {
      out_ = std::exchange(pending_, {});
      sent_ = 0;
    }
    if (out_.empty()) return OnAllSent();
    writing_ = true;
    if (state_ != State::kBody) SetDeadline(hub_->options.write_time);
    stream_.async_write_some(asio::buffer(out_.data() + sent_, out_.size() - sent_),
                             [self = Self()](error_code error, size_t bytes) {
                               self->writing_ = false;
                               if (self->state_ == State::kClosed) return;
                               if (error) return self->CloseNow();
                               self->sent_ += bytes;
                               self->WriteNext();
                             });
  }

  // Called when the answer is complete, but perhaps not sent yet.
  void OnAnswerComplete() {
    answered_ = true;
    call_ = 0;
    ReleaseBody();
    if (!writing_) WriteNext();
  }

  // Called when all bytes queued so far are sent.
  void OnAllSent() {
    if (state_ != State::kCall) return;
    if (!answered_) {
      deadline_ = absl::InfiniteDuration();
      return;
    }
    if (!keep_alive_) return Linger();  // The parser stays, as a read into it may be under way.
    parser_.reset();
    state_ = State::kHead;
    SetDeadline(hub_->options.idle_time);
    if (!reading_) return ReadHead(hub_->options.idle_time);
    error_code ignored;
    // The next request may have been read completely already. Then no more bytes will come, so the
    // read of Listen() is cancelled, and its handler parses the request.
    if (buffer_.size() > 0) Socket().cancel(ignored);
  }

  // Closes the connection slowly. If it were closed at once, unread bytes would make the kernel
  // reset it, and the client might never see the answer.
  void Linger() {
    state_ = State::kLinger;
    SetDeadline(kLinger);
    if constexpr (kTls) {
      if (reading_) return CloseNow();
      stream_.async_shutdown([self = Self()](error_code) { self->CloseNow(); });
    } else {
      error_code ignored;
      stream_.shutdown(tcp::socket::shutdown_send, ignored);
      if (!reading_) Discard();
    }
  }

  // Reads and drops bytes until the client closes or the time is up.
  void Discard() {
    buffer_.clear();
    reading_ = true;
    stream_.async_read_some(buffer_.prepare(16 << 10), [self = Self()](error_code error, size_t) {
      self->reading_ = false;
      if (self->state_ == State::kClosed) return;
      if (error) return self->CloseNow();
      self->Discard();
    });
  }

  Hub* const hub_;
  Stream stream_;
  beast::flat_buffer buffer_{256 << 10};
  std::optional<web::request_parser<web::string_body>> parser_;
  State state_ = State::kHead;
  absl::Duration deadline_;  // Monotonic.
  unsigned version_ = 11;
  bool keep_alive_ = false, chunked_ = false;
  bool bodiless_ = false;  // The request is HEAD: its answer is that of GET without the body.
  bool reading_ = false, writing_ = false;  // A read or a write is under way.
  bool answered_ = false;                   // The call's answer is complete.
  bool cut_ = false;                        // The reader was too slow and is being cut off.
  uint64_t call_ = 0;                       // Id of the Api's call; 0 if none is under way.
  uint64_t body_ = 0;          // Bytes that this connection has reserved in Hub::bodies.
  std::string out_, pending_;  // out_ is being written, from sent_ on; pending_ follows it.
  size_t sent_ = 0;
};

uint64_t RandomSeed() {
  static thread_local std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// Raises the limit of open files, as each connection needs a descriptor.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<tcp::endpoint> ParseAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  error_code error;
  const asio::ip::address ip = asio::ip::make_address(host, error);
  if (colon == std::string::npos || error || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--http ", address,
        ": this is not an address; wanted: IP:PORT, such as 127.0.0.1:8000 or [::1]:8000"));
  }
  return tcp::endpoint(ip, static_cast<uint16_t>(port));
}

absl::StatusOr<std::unique_ptr<asio::ssl::context>> MakeTls(const Server::Options& options) {
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  tls->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1 |
                       asio::ssl::context::no_compression,
                   error);
  tls->use_certificate_chain_file(options.cert, error);
  if (error)
    return absl::InvalidArgumentError(
        absl::StrCat("certificate ", options.cert, ": ", error.message()));
  tls->use_private_key_file(options.cert_key, asio::ssl::context::pem, error);
  if (error)
    return absl::InvalidArgumentError(
        absl::StrCat("key ", options.cert_key, ": ", error.message()));
  return tls;
}

}  // namespace

struct Server::Impl {
  explicit Impl(const Options& options)
      : hub(options), acceptor(hub.io), timer(hub.io), guard(asio::make_work_guard(hub.io)) {}

  Hub hub;
  std::unique_ptr<asio::ssl::context> tls;
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  asio::executor_work_guard<asio::io_context::executor_type> guard;
  std::string address;
  bool accepting = false, stopping = false;
  absl::Duration last_api_tick;
  std::vector<std::shared_ptr<std::promise<void>>> idle_waiters;
  std::thread thread;

  absl::Status Listen(const tcp::endpoint& endpoint) {
    error_code error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(1024, error);
    if (error == asio::error::address_in_use) {
      return ErrorWith(
          absl::StatusCode::kAlreadyExists,
          {.reason = "PORT_IN_USE",
           .hint =
               "stop what listens there, or give another port with --http (port 0: any free one)"},
          absl::StrCat("cannot serve HTTP on ", hub.options.address, ": the port is in use"));
    }
    if (error)
      return absl::InvalidArgumentError(
          absl::StrCat("cannot serve HTTP on ", hub.options.address, ": ", error.message()));
    const tcp::endpoint bound = acceptor.local_endpoint(error);
    address = absl::StrCat(hub.options.address.substr(0, hub.options.address.rfind(':')), ":",
                           bound.port());
    return absl::OkStatus();
  }

  void Accept() {
    if (accepting || !acceptor.is_open() || hub.links.size() >= hub.options.most_connections)
      return;
    accepting = true;
    acceptor.async_accept([this](error_code error, tcp::socket socket) {
      accepting = false;
      if (error || stopping) return;  // The next tick tries again.
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      socket.set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
      std::shared_ptr<Link> link;
      if (tls != nullptr) {
        link = std::make_shared<Connection<TlsStream>>(&hub, TlsStream(std::move(socket), *tls));
      } else {
        link = std::make_shared<Connection<tcp::socket>>(&hub, std::move(socket));
      }
      hub.links.emplace(link.get(), link);
      link->Start();
      Accept();
    });
  }

  void Tick() {
    timer.expires_after(kTick);
    timer.async_wait([this](error_code error) {
      if (error || stopping) return;
      const absl::Duration now = Now();
      std::vector<std::shared_ptr<Link>> links;
      for (const auto& [key, link] : hub.links) links.push_back(link);
      bool busy = hub.api->calls() > 0;
      for (const std::shared_ptr<Link>& link : links) {
        link->Tick(now);
        busy = busy || link->busy();
      }
      if (now - last_api_tick >= absl::Seconds(1)) {
        hub.api->Tick();
        last_api_tick = now;
      }
      if (!busy) {
        for (const auto& waiter : std::exchange(idle_waiters, {})) waiter->set_value();
      }
      Accept();
      Tick();
    });
  }

  void Stop() {
    if (!thread.joinable()) return;
    asio::post(hub.io, [this] {
      stopping = true;
      error_code ignored;
      acceptor.close(ignored);
      timer.cancel();
      std::vector<std::shared_ptr<Link>> links;
      for (const auto& [key, link] : hub.links) links.push_back(link);
      for (const std::shared_ptr<Link>& link : links) link->CloseNow();
      guard.reset();
    });
    hub.pool.join();
    thread.join();
  }
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop(); }
Api& Server::api() { return *impl_->hub.api; }
const std::string& Server::address() const { return impl_->address; }
void Server::Stop() { impl_->Stop(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options, Api::Options api) {
  SLUICE_ASSIGN_OR_RETURN(const tcp::endpoint endpoint, ParseAddress(options.address));
  const bool tls = !options.cert.empty() && !options.cert_key.empty();
  if (!endpoint.address().is_loopback() && (api.keys == nullptr || !tls)) {
    return ErrorWith(
        absl::StatusCode::kFailedPrecondition,
        {.hint = "give --http-keys, --http-cert and --http-cert-key, or listen on 127.0.0.1"},
        absl::StrCat("--http ", options.address,
                     " is not a loopback address, so the API needs keys and TLS"));
  }

  RaiseDescriptorLimit();
  auto impl = std::make_unique<Impl>(options);
  if (tls) {
    SLUICE_ASSIGN_OR_RETURN(impl->tls, MakeTls(options));
  }
  SLUICE_RETURN_IF_ERROR(impl->Listen(endpoint));

  Hub* const hub = &impl->hub;
  api.post = [hub](std::function<void()> run) { asio::post(hub->io, std::move(run)); };
  api.work = [hub](std::function<void()> run) { asio::post(hub->pool, std::move(run)); };
  api.clock = Clock::Real();
  api.random = RandomSeed;
  hub->api = std::make_unique<Api>(std::move(api));
  impl->Accept();
  impl->Tick();
  impl->thread = std::thread([hub] { hub->io.run(); });
  pthread_setname_np(impl->thread.native_handle(), "sluice-http");
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

bool Server::AwaitIdle(absl::Duration timeout) {
  auto waiter = std::make_shared<std::promise<void>>();
  std::future<void> idle = waiter->get_future();
  asio::post(impl_->hub.io, [impl = impl_.get(), waiter] { impl->idle_waiters.push_back(waiter); });
  return idle.wait_for(absl::ToChronoNanoseconds(timeout)) == std::future_status::ready;
}

}  // namespace sluice::rollout::http
