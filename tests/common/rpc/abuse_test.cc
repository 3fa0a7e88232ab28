// A server survives clients that speak HTTP/2 wrongly on purpose: afterwards it answers others.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/fd.h"
#include "common/rpc/client.h"
#include "common/rpc/server.h"
#include "sluice/queue/v1/queue.grpc.pb.h"

namespace sluice::rpc {
namespace {

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return BigEndian(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + BigEndian(stream, 4) + payload;
}

// A header as HPACK writes it, without indexing and without Huffman codes.
std::string Header(const std::string& name, const std::string& value) {
  const auto with_length = [](const std::string& text) {
    std::string out;
    size_t left = text.size();
    if (left < 127) return std::string(1, static_cast<char>(left)) + text;
    out.push_back(127);
    for (left -= 127; left >= 128; left /= 128) out.push_back(static_cast<char>(left % 128 + 128));
    out.push_back(static_cast<char>(left));
    return out + text;
  };
  return std::string(1, '\0') + with_length(name) + with_length(value);
}

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "");

std::string CallHeaders() {
  return Header(":method", "POST") + Header(":scheme", "http") +
         Header(":path", "/sluice.queue.v1.QueueService/Stats") + Header(":authority", "x") +
         Header("content-type", "application/grpc") + Header("te", "trailers");
}

// A call with one more header, which is wrong.
std::string CallWith(const std::string& header) {
  return Frame(kHeaders, kEndHeaders, 1, CallHeaders() + header) +
         Frame(kData, kEndStream, 1, std::string(5, '\0'));
}

std::string Repeated(const std::string& bytes, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += bytes;
  return all;
}

class IdleQueue : public queue::v1::QueueService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const queue::v1::StatsRequest*,
                                  queue::v1::StatsResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

class AbuseTest : public ::testing::Test {
 protected:
  AbuseTest() {
    grpc::Service* const services[] = {&queue_};
    server_ = *Server::Start({}, services);
    EXPECT_TRUE(
        absl::SimpleAtoi(server_->address().substr(server_->address().rfind(':') + 1), &port_));
  }

  // Sends bytes on a new connection until they are sent or the server does not take more, and reads
  // and drops what it answers.
  void Send(const std::string& bytes) {
    const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in peer{.sin_family = AF_INET,
                     .sin_port = htons(static_cast<uint16_t>(port_)),
                     .sin_addr = {htonl(INADDR_LOOPBACK)}};
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
    std::string answer(1 << 16, '\0');
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd.get(), bytes.data() + sent,
                             std::min<size_t>(bytes.size() - sent, 1 << 16), MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
      while (recv(fd.get(), answer.data(), answer.size(), MSG_DONTWAIT) > 0) {
      }
    }
    (void)recv(fd.get(), answer.data(), answer.size(), 0);
  }

  // Whether another client's call succeeds.
  bool Answers() {
    const auto channel = *Connect(server_->address(), {Role::kQueue});
    queue::v1::StatsResponse response;
    return Call(*channel, queue::v1::StatsRequest(), &response).ok();
  }

  IdleQueue queue_;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

TEST_F(AbuseTest, WhatIsNotHttp2IsDropped) {
  for (const std::string& bytes :
       {std::string(1 << 16, 'x'), std::string(1 << 16, '\0'),
        std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("\x16\x03\x01\x02\x00\x01"),
        kPreface.substr(0, 10), kPreface + std::string(1 << 16, '\xff')}) {
    Send(bytes);
    EXPECT_TRUE(Answers());
  }
}

TEST_F(AbuseTest, EachWrongHeaderOrFrameIsRefusedAlone) {
  const std::vector<std::string> wrong = {
      CallWith(Header("x-bin", "not base64 !")),
      CallWith(Header("x-bin", "A")),
      CallWith(Header("", "empty name")),
      CallWith(Header("UPPER", "x")),
      CallWith(Header("a b", "x")),
      CallWith(Header("a\r\nb", "x")),
      CallWith(Header("a", "x\r\ny: z")),
      CallWith(Header("a", std::string("\0", 1))),
      CallWith(Header(":path", "/second")),
      CallWith(Header(":unknown", "x")),
      CallWith(Header("connection", "close")),
      CallWith(Header("te", "gzip")),
      CallWith(Header("content-type", "text/html")),
      CallWith(Header("grpc-timeout", "99999999999999999999H")),
      CallWith(Header("grpc-timeout", "-1S")),
      CallWith(Header("grpc-encoding", "no-such")),
      CallWith(Header("content-length", "-5")),
      CallWith(std::string("\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11)),
      CallWith(std::string("\xff\xff\xff\xff\x0f", 5)),
      CallWith(std::string("\x00\x7f\xff\xff\xff\xff\x0f", 7)),
      Frame(kHeaders, kEndHeaders, 0, CallHeaders()),
      Frame(kHeaders, kEndHeaders, 2, CallHeaders()),
      Frame(kData, kEndStream, 7, "x"),
      Frame(kSettings, 0, 0, "odd"),
      Frame(kSettings, 0, 0, BigEndian(0x00047fff, 4) + BigEndian(0xffffffff, 4)),
      Frame(kWindowUpdate, 0, 0, BigEndian(0, 4)),
      Repeated(Frame(kWindowUpdate, 0, 0, BigEndian(0x7fffffff, 4)), 4),
      Frame(kPing, 0, 0, "short"),
      Frame(kContinuation, kEndHeaders, 1, CallHeaders()),
  };
  ASSERT_GE(wrong.size(), 24u);
  for (size_t i = 0; i < wrong.size(); ++i) {
    Send(kPreface + wrong[i]);
    EXPECT_TRUE(Answers()) << i;
  }
}

TEST_F(AbuseTest, AFloodKeepsNobodyElseFromAnAnswer) {
  ASSERT_TRUE(Answers());
  const std::string large = Header("a", std::string(16000, 'x'));
  const std::string many = Repeated(Header("a", "b"), 3000);
  const std::string call = Frame(kHeaders, kEndHeaders | kEndStream, 1, CallHeaders());
  std::string resets;
  for (uint32_t stream = 1; stream < 40000; stream += 2) {
    resets += Frame(kHeaders, kEndHeaders, stream, CallHeaders());
    resets += Frame(kReset, 0, stream, BigEndian(8, 4));
  }
  int64_t sent = 0;
  for (const std::string& flood :
       {Frame(kHeaders, 0, 1, CallHeaders()) + Repeated(Frame(kContinuation, 0, 1, large), 4000),
        Frame(kHeaders, 0, 1, CallHeaders()) + Repeated(Frame(kContinuation, 0, 1, many), 2000),
        Frame(kHeaders, 0, 1, CallHeaders()) + Repeated(Frame(kContinuation, 0, 1, ""), 200000),
        Repeated(Frame(kPing, 0, 0, "12345678"), 200000),
        Repeated(Frame(kSettings, 0, 0, BigEndian(0x00030000, 4) + BigEndian(100, 2)), 100000),
        Repeated(Frame(kWindowUpdate, 0, 0, BigEndian(1, 4)), 200000), resets}) {
    Send(kPreface + flood);
    sent += static_cast<int64_t>(flood.size());
    EXPECT_TRUE(Answers());
  }
  EXPECT_GT(sent, int64_t{64} << 20);
}

}  // namespace
}  // namespace sluice::rpc
