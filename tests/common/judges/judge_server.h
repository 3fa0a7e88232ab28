#pragma once

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast.hpp>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "nlohmann/json.hpp"

namespace sluice {

// An HTTP server on loopback in the place of a judge: a handler of the test answers each call. A
// thread for each connection.
class JudgeServer {
 public:
  struct Call {
    std::string target, authorization;
    nlohmann::json body;
  };
  struct Reply {
    int status = 200;
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers = {};
  };
  using Handler = std::function<Reply(const Call& call)>;

  // A reply as an OpenAI-compatible API gives it.
  static Reply Says(const std::string& text, uint64_t tokens = 10) {
    return {.body = nlohmann::json{{"choices",
                                    {{{"finish_reason", "stop"},
                                      {"message", {{"role", "assistant"}, {"content", text}}}}}},
                                   {"usage", {{"total_tokens", tokens}}}}
                        .dump()};
  }

  // With `certificate` and `key`, PEM texts, over TLS.
  explicit JudgeServer(Handler handler, const std::string& certificate = "",
                       const std::string& key = "")
      : handler_(std::move(handler)), tls_(!certificate.empty()) {
    if (tls_) {
      context_.use_certificate_chain(boost::asio::buffer(certificate));
      context_.use_private_key(boost::asio::buffer(key), boost::asio::ssl::context::pem);
    }
    thread_ = std::thread([this] { Accept(); });
  }
  ~JudgeServer() {
    boost::system::error_code ignored;
    {
      MutexLock lock(&mu_);
      stopped_ = true;
      for (Socket& socket : sockets_) socket.shutdown(Socket::shutdown_both, ignored);
    }
    // accept() does not return when its socket is closed, but with a last connection.
    Socket last(io_);
    last.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    for (std::thread& connection : connections_) connection.join();
  }

  std::string host() const { return absl::StrCat("127.0.0.1:", acceptor_.local_endpoint().port()); }
  std::string url() const { return absl::StrCat(tls_ ? "https://" : "http://", host(), "/v1"); }

 private:
  using Socket = boost::asio::ip::tcp::socket;

  void Accept() {
    while (true) {
      Socket socket(io_);
      boost::system::error_code error;
      acceptor_.accept(socket, error);
      MutexLock lock(&mu_);
      if (stopped_ || error) return;
      Socket* const kept = &sockets_.emplace_back(std::move(socket));
      connections_.emplace_back([this, kept] {
        if (tls_) {
          boost::asio::ssl::stream<Socket&> stream(*kept, context_);
          boost::system::error_code failed;
          stream.handshake(boost::asio::ssl::stream_base::server, failed);
          if (!failed) Serve(stream);
        } else {
          Serve(*kept);
        }
        boost::system::error_code ignored;
        MutexLock done(&mu_);
        kept->shutdown(Socket::shutdown_both, ignored);
      });
    }
  }

  template <typename Stream>
  void Serve(Stream& stream) {
    namespace http = boost::beast::http;
    boost::beast::flat_buffer buffer;
    boost::system::error_code error;
    while (true) {
      http::request<http::string_body> request;
      http::read(stream, buffer, request, error);
      if (error) return;
      const Reply reply =
          handler_({.target = std::string(request.target()),
                    .authorization = std::string(request[http::field::authorization]),
                    .body = nlohmann::json::parse(request.body(), nullptr, false)});
      http::response<http::string_body> response(static_cast<http::status>(reply.status), 11);
      for (const auto& [name, value] : reply.headers) response.set(name, value);
      response.body() = reply.body;
      response.keep_alive(true);
      response.prepare_payload();
      http::write(stream, response, error);
      if (error) return;
    }
  }

  const Handler handler_;
  const bool tls_;
  boost::asio::io_context io_;
  boost::asio::ssl::context context_{boost::asio::ssl::context::tls_server};
  boost::asio::ip::tcp::acceptor acceptor_{io_, {boost::asio::ip::make_address("127.0.0.1"), 0}};
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::list<Socket> sockets_ ABSL_GUARDED_BY(mu_);
  std::list<std::thread> connections_;
  std::thread thread_;
};

}  // namespace sluice
