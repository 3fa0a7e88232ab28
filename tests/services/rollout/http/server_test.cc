#include "services/rollout/http/server.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <thread>

#include "absl/strings/match.h"
#include "common/testing/data.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/services/rollout/http/client.h"
#include "tests/services/rollout/http/fake_model.h"

namespace sluice::rollout::http {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr char kPath[] = "/v1/completions";
constexpr char kBody[] = R"({"model": "digits", "prompt": "1="})";
constexpr char kStream[] = R"({"model": "digits", "prompt": "1=", "stream": true})";
constexpr char kModels[] = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";

class ServerTest : public testing::Test {
 protected:
  void Start(Server::Options options = {}, const Keys* keys = nullptr) {
    auto server = Server::Start(options, {.keys = keys, .guests = &guests_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->api().SetModel(model_);
  }

  void Answer(uint64_t request, const std::string& text, FinishReason finish) {
    guests_.DeliverEvents(Step({Sampled(request, 3, text, finish)}));
  }

  std::shared_ptr<FakeModel> model_ = std::make_shared<FakeModel>();
  Guests guests_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AConnectionServesOneRequestAfterAnother) {
  Start();
  Client client(server_->address());
  for (size_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(client.Send(PostText(kPath, kBody)));
    Answer(model_->AwaitRequests(i).back().id, "42", FinishReason::kStop);
    EXPECT_THAT(client.Until("\r\n\r\n"), StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(client.Until("\"total_tokens\":4}}"), HasSubstr("\"text\":\"42\""));
  }

  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInTheirOrder) {
  Start();
  Client client(server_->address());
  ASSERT_TRUE(client.Send(PostText(kPath, kBody) + kModels + kModels));
  Answer(model_->AwaitRequests(1)[0].id, "42", FinishReason::kStop);

  EXPECT_THAT(client.Until("}}"), HasSubstr("text_completion"));
  EXPECT_THAT(client.Until("]}"), HasSubstr("\"object\":\"list\""));
  EXPECT_THAT(client.Until("]}"), HasSubstr("\"object\":\"list\""));
}

TEST_F(ServerTest, TheAnswerToAHeadHasNoBodyAndTheNextFollowsIt) {
  Start();
  Client client(server_->address());
  const auto head = [](absl::string_view path) {
    return absl::StrCat("HEAD ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  };
  ASSERT_TRUE(client.Send(head("/livez") + head("/readyz") + head("/v1/models") + head(kPath) +
                          head("/v2") + kModels));

  const std::string live = client.Until("\r\n\r\n");
  EXPECT_THAT(live, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(live, HasSubstr("Content-Length: 3\r\n")) << "as a GET would have it";
  for (const char* status :
       {"HTTP/1.1 200", "HTTP/1.1 200", "HTTP/1.1 405", "HTTP/1.1 404", "HTTP/1.1 200"})
    EXPECT_THAT(client.Until("\r\n\r\n"), StartsWith(status));
  EXPECT_THAT(client.Until("]}"), HasSubstr("\"object\":\"list\"")) << "which was asked for by GET";
}

TEST_F(ServerTest, ABodyThatIsEncodedIsRefused) {
  Start();
  Client client(server_->address());
  ASSERT_TRUE(client.Send(PostText(kPath, kBody, "Content-Encoding: gzip\r\n")));
  EXPECT_THAT(client.Rest(),
              testing::AllOf(StartsWith("HTTP/1.1 415"), HasSubstr("Content-Encoding is gzip")));
}

TEST_F(ServerTest, WhatIsNoRequestOrTooLargeIsToldSoAndTheConnectionEnds) {
  Start();
  const auto answer = [&](const std::string& bytes) {
    Client client(server_->address());
    client.Send(bytes);
    return client.Rest();
  };

  EXPECT_THAT(answer("this is no HTTP\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  // This is how a TLS connection begins.
  EXPECT_THAT(answer("\x16\x03\x01\x02\x01\x01\x01\x01\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer(absl::StrCat("GET /v1/models HTTP/1.1\r\nX: ", std::string(17 << 10, 'x'),
                                  "\r\n\r\n")),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(answer("POST /v1/completions HTTP/1.1\r\nContent-Type: "
                     "application/json\r\nContent-Length: 9000000\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(answer("POST /v1/completions HTTP/1.1\r\nContent-Type: "
                     "application/json\r\nContent-Length: 18446744073709551615\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(
      answer("POST /v1/completions HTTP/1.1\r\nContent-Type: "
             "application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
      StartsWith("HTTP/1.1 411"));
  EXPECT_THAT(answer("POST /v1/completions HTTP/1.1\r\nContent-Type: "
                     "application/json\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\n{}"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer("PUT /v1/models HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"),
              HasSubstr("Allow: GET"));
  EXPECT_THAT(answer("GET /v1/models HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.0 200"));
  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
  EXPECT_TRUE(model_->AwaitRequests(0).empty());
}

TEST_F(ServerTest, ALargeBodyIsAskedForBeforeItIsSent) {
  Start();
  Client client(server_->address());
  ASSERT_TRUE(client.Send(absl::StrCat(
      "POST ", kPath,
      " HTTP/1.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: ",
      sizeof kBody - 1, "\r\n\r\n")));
  EXPECT_THAT(client.Until("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue"));

  ASSERT_TRUE(client.Send(kBody));
  Answer(model_->AwaitRequests(1)[0].id, "42", FinishReason::kStop);
  EXPECT_THAT(client.Until("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(ServerTest, AClientThatTakesItsTimeIsTold408) {
  Start({.head_time = absl::Seconds(1), .body_time = absl::Seconds(1)});
  Client head(server_->address());
  ASSERT_TRUE(head.Send("GET /v1/mod"));
  Client body(server_->address());
  ASSERT_TRUE(
      body.Send("POST /v1/completions HTTP/1.1\r\nContent-Type: "
                "application/json\r\nContent-Length: 100\r\n\r\n{\"model"));
  Client silent(server_->address());

  EXPECT_THAT(head.Rest(), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(body.Rest(), StartsWith("HTTP/1.1 408"));
  EXPECT_EQ(silent.Rest(), "");

  head.Send("els HTTP/1.1\r\n\r\n");  // Too late: it is ignored.
  body.Send("\": \"m\"}");
  for (Client* client : {&head, &body, &silent}) client->Close();
  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
}

TEST_F(ServerTest, BodiesOfAllConnectionsTogetherHaveALimit) {
  Start({.most_bodies = 1000});
  Client first(server_->address());
  ASSERT_TRUE(
      first.Send("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nExpect: "
                 "100-continue\r\nContent-Length: 900\r\n\r\n"));
  first.Until("\r\n\r\n");

  Client second(server_->address());
  ASSERT_TRUE(
      second.Send("POST /v1/completions HTTP/1.1\r\nContent-Type: "
                  "application/json\r\nContent-Length: 200\r\n\r\n"));
  EXPECT_THAT(second.Rest(), HasSubstr("429 Too Many Requests"));

  first.Close();
  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
  Client third(server_->address());
  ASSERT_TRUE(third.Send(PostText(kPath, kBody)));
  model_->AwaitRequests(1);
}

TEST_F(ServerTest, AClientThatLeavesIsAborted) {
  Start();
  {
    Client waits(server_->address()), streams(server_->address());
    ASSERT_TRUE(waits.Send(PostText(kPath, kBody)));
    const uint64_t first = model_->AwaitRequests(1)[0].id;
    ASSERT_TRUE(streams.Send(PostText(kPath, kStream)));
    Answer(model_->AwaitRequests(2)[1].id, "4", FinishReason::kNone);
    EXPECT_THAT(streams.Until("\"4\""), StartsWith("HTTP/1.1 200"));

    waits.Close();
    EXPECT_EQ(model_->AwaitAborted(1)[0], first);
  }

  model_->AwaitAborted(2);
  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
}

TEST_F(ServerTest, AReaderWhoStaysBehindIsCutOff) {
  Start({.most_behind = 64 << 10});
  Client client(server_->address(), /*receive_buffer=*/4096);
  ASSERT_TRUE(client.Send(PostText(kPath, kStream)));
  const uint64_t request = model_->AwaitRequests(1)[0].id;
  const std::string text(16 << 10, '7');

  // 8 MB are more than the kernel's buffers hold.
  for (int i = 0; i < 500; ++i) Answer(request, text, FinishReason::kNone);

  EXPECT_EQ(model_->AwaitAborted(1)[0], request);
  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
}

TEST_F(ServerTest, AReaderWhoTakesNothingIsCutOffInTime) {
  Start({.write_time = absl::Milliseconds(200)});
  Client client(server_->address(), /*receive_buffer=*/4096);
  ASSERT_TRUE(client.Send(PostText(kPath, kBody)));
  Answer(model_->AwaitRequests(1)[0].id, std::string(8 << 20, '7'), FinishReason::kStop);
  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
}

TEST_F(ServerTest, AThousandStreamsRunAtOnceAndNoneIsLeftBehind) {
  constexpr size_t kStreams = 1000, kTokens = 8;
  Start();
  std::vector<Client> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.emplace_back(server_->address());
    ASSERT_TRUE(clients.back().Send(PostText(kPath, kStream)));
  }

  const std::vector<Request> requests = model_->AwaitRequests(kStreams);
  for (size_t t = 0; t < kTokens; ++t) {
    StepEvents step;
    for (const Request& request : requests)
      step.tokens.push_back(
          Sampled(request.id, 3, std::to_string(t),
                  t + 1 == kTokens ? FinishReason::kLength : FinishReason::kNone));
    guests_.DeliverEvents(std::move(step));
  }

  for (Client& client : clients) {
    const std::string all = client.Until("[DONE]\n\n\r\n0\r\n\r\n");
    for (size_t t = 0; t < kTokens; ++t)
      ASSERT_THAT(all, HasSubstr(absl::StrCat("\"text\":\"", t, "\"")));
  }

  EXPECT_TRUE(server_->AwaitIdle(absl::Seconds(60)));
}

TEST_F(ServerTest, ConnectionsBeyondTheLimitWaitUntilOneEnds) {
  Start({.most_connections = 1});
  auto first = std::make_unique<Client>(server_->address());
  ASSERT_TRUE(first->Send(kModels));
  EXPECT_THAT(first->Until("]}"), HasSubstr("digits"));

  Client second(server_->address());
  ASSERT_TRUE(second.Send(kModels));
  first.reset();
  EXPECT_THAT(second.Until("]}"), HasSubstr("digits"));
}

TEST_F(ServerTest, TheServerEndsUnderStreamsThatRun) {
  Start();
  Client client(server_->address());
  ASSERT_TRUE(client.Send(PostText(kPath, kStream)));
  model_->AwaitRequests(1);
  EXPECT_FALSE(server_->AwaitIdle(absl::Milliseconds(1)));

  server_->Stop();
  model_->AwaitAborted(1);
  EXPECT_EQ(client.Rest(), "");
}

TEST_F(ServerTest, OffLoopbackThereIsNoServerWithoutKeysAndTls) {
  const auto keys = Keys::Parse("lab 0123456789abcdef\n", "keys");
  EXPECT_EQ(Server::Start({.address = "0.0.0.0:0"}, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Server::Start({.address = "0.0.0.0:0"}, {.keys = &*keys}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Server::Start({.address = "[::]:0", .cert = "a", .cert_key = "b"}, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);

  EXPECT_EQ(Server::Start({.address = "here:0"}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Server::Start({.address = "127.0.0.1:99999"}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      Server::Start({.cert = "/nowhere/cert", .cert_key = "/nowhere/key"}, {}).status().code(),
      absl::StatusCode::kInvalidArgument);

  Start();
  EXPECT_EQ(Server::Start({.address = server_->address()}, {}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

// Writes a key and a self-signed certificate as PEM files.
void WriteCertificate(const std::string& cert, const std::string& key) {
  EVP_PKEY* const pair = EVP_EC_gen("P-256");
  X509* const x509 = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509), 0);
  X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
  X509_set_pubkey(x509, pair);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(x509, X509_get_subject_name(x509));
  X509_sign(x509, pair, EVP_sha256());

  FILE* file = fopen(cert.c_str(), "w");
  PEM_write_X509(file, x509);
  fclose(file);
  file = fopen(key.c_str(), "w");
  PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
  fclose(file);

  X509_free(x509);
  EVP_PKEY_free(pair);
}

TEST_F(ServerTest, OverTlsAStreamRunsAndALeaverIsAborted) {
  const std::string cert = testing_data::TempPath("http_cert.pem"),
                    key = testing_data::TempPath("http_key.pem");
  WriteCertificate(cert, key);
  const auto keys = Keys::Parse("lab 0123456789abcdef\n", "keys");
  Start({.address = "0.0.0.0:0", .cert = cert, .cert_key = key}, &*keys);

  Client socket(server_->address());
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  SSL* const tls = SSL_new(context);
  SSL_set_fd(tls, socket.fd());
  ASSERT_EQ(SSL_connect(tls), 1);

  const auto send = [&](const std::string& bytes) {
    return SSL_write(tls, bytes.data(), static_cast<int>(bytes.size())) > 0;
  };
  const auto until = [&](const char* text) {
    std::string seen;
    char c;
    while (!absl::StrContains(seen, text) && SSL_read(tls, &c, 1) == 1) seen += c;
    return seen;
  };

  ASSERT_TRUE(send(PostText(kPath, kBody)));
  EXPECT_THAT(until("}}"), StartsWith("HTTP/1.1 401"));

  const std::string bearer = "Authorization: Bearer 0123456789abcdef\r\n";
  Client again(server_->address());
  SSL_clear(tls);
  SSL_set_fd(tls, again.fd());
  ASSERT_EQ(SSL_connect(tls), 1);
  ASSERT_TRUE(send(PostText(kPath, kStream, bearer)));
  Answer(model_->AwaitRequests(1)[0].id, "4", FinishReason::kStop);
  EXPECT_THAT(until("[DONE]\n\n\r\n0\r\n\r\n"), HasSubstr("\"text\":\"4\""));

  ASSERT_TRUE(send(PostText(kPath, kStream, bearer)));
  const uint64_t left = model_->AwaitRequests(2)[1].id;
  again.Close();
  EXPECT_EQ(model_->AwaitAborted(1)[0], left);

  SSL_free(tls);
  SSL_CTX_free(context);
}

}  // namespace
}  // namespace sluice::rollout::http
