#include "common/run_code/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/judges/http_client.h"
#include "common/pki/certificate.h"
#include "common/run_code/protocol.h"
#include "common/testing/data.h"
#include "tests/common/handed.h"

namespace sluice::run_code {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

HttpAnswer Echo(const HttpRequest& request) {
  return {.body = absl::StrCat(request.method, " ", request.path, " ", request.body)};
}

std::unique_ptr<HttpServer> StartServer(
    HttpServer::Options options = {}, std::function<HttpAnswer(const HttpRequest&)> answer = Echo) {
  auto server = HttpServer::Start(std::move(options), std::move(answer));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

// Sends bytes over a connection of their own, and returns all that comes back until its end.
std::string Talk(const HttpServer& server, const std::string& bytes, bool ends = true) {
  const std::string& address = server.address();
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to{.sin_family = AF_INET,
                       .sin_port = htons(static_cast<uint16_t>(port)),
                       .sin_addr = {htonl(INADDR_LOOPBACK)}};
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (ends) shutdown(fd.get(), SHUT_WR);
  std::string text;
  char piece[4096];
  for (ssize_t got; (got = recv(fd.get(), piece, sizeof piece, 0)) > 0;)
    text.append(piece, static_cast<size_t>(got));
  return text;
}

TEST(HttpServer, RequestsOfOneConnectionAreAnsweredInOrder) {
  const auto server = StartServer();
  const std::string text =
      Talk(*server,
           "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none"
           "POST /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\ntwo");
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\n\r\nPOST /a oneHTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text, testing::EndsWith("\r\n\r\nPOST /b two"));
}

TEST(HttpServer, ABodyInPiecesAndInChunksIsRead) {
  const auto server = StartServer();
  EXPECT_THAT(Talk(*server,
                   "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                   "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
              HasSubstr("POST / abcde"));
  const std::string large(3 << 20, 'x');
  HttpClient client(absl::StrCat("http://", server->address(), "/"), Secret(), "", true);
  const auto reply = client.Post(large, absl::Minutes(1), rpc::Cancel());
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->body.size(), large.size() + 7);
}

TEST(HttpServer, WithoutItsKeyNothingIsAnswered) {
  std::atomic<int> calls = 0;
  HttpServer::Options options;
  options.key = Secret(std::string("right"));
  const auto server = StartServer(std::move(options), [&](const HttpRequest& request) {
    ++calls;
    return Echo(request);
  });
  for (const std::string header :
       {"", "Authorization: Bearer wrong\r\n", "Authorization: Bearer righ\r\n",
        "Authorization: Bearer right2\r\n", "Authorization: right\r\n"}) {
    EXPECT_THAT(Talk(*server, absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\n", header,
                                           "Content-Length: 1\r\n\r\nx")),
                StartsWith("HTTP/1.1 401"))
        << header;
  }
  EXPECT_EQ(calls, 0);
  EXPECT_THAT(Talk(*server,
                   "POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\n"
                   "Content-Length: 1\r\n\r\nx"),
              StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, WhatIsNoRequestOrIsTooLargeIsRefused) {
  const auto server = StartServer();
  EXPECT_THAT(Talk(*server, "GARBAGE\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(
      Talk(*server,
           absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nX: ", std::string(20'000, 'x'), "\r\n\r\n")),
      StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(Talk(*server, absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ",
                                         kMostRequest + 1, "\r\n\r\n")),
              StartsWith("HTTP/1.1 413"));
  // One that breaks off gets no answer, and harms no other.
  EXPECT_EQ(Talk(*server, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"), "");
  EXPECT_THAT(Talk(*server, "GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              HasSubstr("GET /x "));
}

TEST(HttpServer, OtherMachinesNeedAKeyAndTls) {
  HttpServer::Options open;
  open.address = "0.0.0.0:0";
  EXPECT_EQ(HttpServer::Start(std::move(open), Echo).status().code(),
            absl::StatusCode::kFailedPrecondition);
  for (const std::string address : {"localhost", "host:80", "127.0.0.1:99999", ""}) {
    HttpServer::Options wrong;
    wrong.address = address;
    EXPECT_FALSE(HttpServer::Start(std::move(wrong), Echo).ok()) << address;
  }
  const auto server = StartServer();
  HttpServer::Options same;
  same.address = server->address();
  EXPECT_EQ(ReasonOf(HttpServer::Start(std::move(same), Echo).status()), "PORT_IN_USE");
}

TEST(HttpServer, OverTlsAClientBelievesOnlyItsAuthority) {
  const pki::Validity validity{absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)};
  const pki::KeyPair authority =
      *pki::MakeAuthority({.name = "ours", .uri = "spiffe://test/ours"}, validity);
  const pki::KeyPair other =
      *pki::MakeAuthority({.name = "other", .uri = "spiffe://test/other"}, validity);
  const pki::KeyPair pair = *pki::IssueCertificate(
      authority, {.name = "server", .uri = "spiffe://test/server", .hosts = {"127.0.0.1"}},
      validity);
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::string path = testing_data::TempPath(name);
    EXPECT_TRUE(WriteFileAtomic(path, text).ok());
    return path;
  };
  HttpServer::Options options;
  options.cert = write("cert.pem", pair.certificate);
  options.cert_key = write("key.pem", pair.key.Reveal());
  const auto server = StartServer(std::move(options));
  const auto post = [&](const std::string& ca) {
    HttpClient client(absl::StrCat("https://", server->address(), "/"), Secret(), ca, true);
    return client.Post("hello", absl::Minutes(1), rpc::Cancel());
  };
  const auto reply = post(write("ca.pem", authority.certificate));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->body, "POST / hello");
  EXPECT_TRUE(absl::IsUnavailable(post(write("other.pem", other.certificate)).status()));
}

TEST(HttpServer, StoppingWaitsForCallsAndTheirAnswersArrive) {
  Handed<int> begun, end;
  auto server = StartServer({}, [&](const HttpRequest& request) {
    begun.Push(1);
    end.Pop();
    return Echo(request);
  });
  std::string text;
  std::thread talker(
      [&] { text = Talk(*server, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"); });
  begun.Pop();
  std::thread stopper([&] { server->Stop(); });
  end.Push(1);
  stopper.join();
  talker.join();
  EXPECT_THAT(text, HasSubstr("POST /a x"));
}

}  // namespace
}  // namespace sluice::run_code
