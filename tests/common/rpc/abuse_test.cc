// A server survives clients that speak HTTP/2 wrongly on purpose: it goes on to answer others, it
// keeps no memory for them, and they cost it no more CPU time than what they send is worth.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/file.h"
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
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

#ifdef SLUICE_SANITIZED
constexpr int64_t kSlower = 10;  // Sanitizers keep what was freed, and are slow.
#else
constexpr int64_t kSlower = 1;
#endif
// How much more memory the process may have after an attack, whatever was sent.
constexpr int64_t kMaxGrowthBytes = kSlower * (int64_t{48} << 20);
// CPU time of the server for each byte that it was sent. The dearest bytes are those of a call that
// is reset at once: it has 120, and costs about as much as a call.
constexpr double kMaxCpuSecondsPerByte = 5e-6 * kSlower;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string MakeFrame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return BigEndian(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + BigEndian(stream, 4) + payload;
}

// Whether a server that has sent these frames has answered or refused a call.
bool EndsACall(absl::string_view frames) {
  while (frames.size() >= 9) {
    const auto byte = [&](int i) { return static_cast<size_t>(static_cast<uint8_t>(frames[i])); };
    const size_t size = byte(0) << 16 | byte(1) << 8 | byte(2);
    const auto type = static_cast<FrameType>(frames[3]);
    if (type == kReset || type == kGoAway) return true;
    if (type == kHeaders && (byte(4) & kEndStream) != 0) return true;
    frames.remove_prefix(std::min(frames.size(), 9 + size));
  }
  return false;
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

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + MakeFrame(kSettings, 0, 0, "");
// The server's limits of headers and streams bind a client that has acknowledged them. To one that
// has not, those of HTTP/2 and of gRPC apply.
const std::string kAcknowledged = kPreface + MakeFrame(kSettings, 1, 0, "");

std::string CallHeaders() {
  return Header(":method", "POST") + Header(":scheme", "http") +
         Header(":path", "/sluice.queue.v1.QueueService/Stats") + Header(":authority", "x") +
         Header("content-type", "application/grpc") + Header("te", "trailers");
}

// A call with one more header, which is wrong.
std::string CallWith(const std::string& header) {
  return MakeFrame(kHeaders, kEndHeaders, 1, CallHeaders() + header) +
         MakeFrame(kData, kEndStream, 1, std::string(5, '\0'));
}

std::string Repeated(const std::string& bytes, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += bytes;
  return all;
}

int64_t ResidentBytes() {
  malloc_trim(0);
  const std::string pages = ReadFile("/proc/self/statm").value_or("");
  int64_t resident = 0;
  const size_t first = pages.find(' ') + 1;
  EXPECT_TRUE(absl::SimpleAtoi(pages.substr(first, pages.find(' ', first) - first), &resident));
  return resident * sysconf(_SC_PAGESIZE);
}

// The most that was resident since clear_refs was written.
int64_t PeakBytes() {
  const std::string status = ReadFile("/proc/self/status").value_or("");
  const size_t at = status.find("VmHWM:") + 6;
  int64_t kib = 0;
  EXPECT_TRUE(absl::SimpleAtoi(status.substr(at, status.find("kB", at) - at), &kib));
  return kib * 1024;
}

bool WriteFile(const char* path, const char* text) {
  FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return false;
  const bool written = std::fputs(text, file) >= 0;
  return std::fclose(file) == 0 && written;
}

// CPU time of all threads but this one, which is the attacker.
double ServerCpuSeconds() {
  const auto used = [](int who) {
    rusage usage{};
    getrusage(who, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  };
  return used(RUSAGE_SELF) - used(RUSAGE_THREAD);
}

class IdleQueue : public queue::v1::QueueService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const queue::v1::StatsRequest*,
                                  queue::v1::StatsResponse*) override {
    ++calls;
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  std::atomic<int> calls = 0;
};

class AbuseTest : public ::testing::Test {
 protected:
  explicit AbuseTest(const Server::Options& options = {}) {
    grpc::Service* const services[] = {&queue_};
    server_ = *Server::Start(options, services);
    EXPECT_TRUE(
        absl::SimpleAtoi(server_->address().substr(server_->address().rfind(':') + 1), &port_));
  }

  // Sends bytes on a new connection until they are sent or the server closes it. Reads and drops
  // what it answers, and returns when the connection is closed. With `await_answer` that is not
  // before the server has answered or refused the call of the bytes, of which there is one.
  void Send(const std::string& bytes, int64_t* accepted = nullptr, bool await_answer = false) {
    const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in peer{.sin_family = AF_INET,
                     .sin_port = htons(static_cast<uint16_t>(port_)),
                     .sin_addr = {htonl(INADDR_LOOPBACK)}};
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
    std::string answer(1 << 16, '\0');
    std::string answers;
    const auto read = [&](int flags) {
      const ssize_t n = recv(fd.get(), answer.data(), answer.size(), flags);
      if (await_answer && n > 0) answers.append(answer, 0, static_cast<size_t>(n));
      return n;
    };
    // What is acknowledged must have come. It is the first thing that the server says, and on a
    // busy machine it may take longer than one read waits.
    if (absl::StartsWith(bytes, kAcknowledged)) {
      ssize_t settings = read(0);
      for (int i = 0; i < 600 && settings < 0 && (errno == EAGAIN || errno == EINTR); ++i) {
        settings = read(0);
      }
      ASSERT_GT(settings, 0) << "the server has sent no settings within a minute";
    }
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd.get(), bytes.data() + sent,
                             std::min<size_t>(bytes.size() - sent, 1 << 16), MSG_NOSIGNAL);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        while (read(MSG_DONTWAIT) > 0) {
        }
        continue;
      }
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
      if (accepted != nullptr) *accepted += n;
      while (read(MSG_DONTWAIT) > 0) {
      }
    }
    while (await_answer && !EndsACall(answers)) {
      const ssize_t n = read(0);
      ASSERT_TRUE(n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)));
    }
    // The server closes the connection once it has read everything.
    shutdown(fd.get(), SHUT_WR);
    while (true) {
      const ssize_t n = read(0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    }
  }

  // Sends an attack several times, and checks what it costs. First by a client that has not
  // acknowledged the server's settings, then by one that has. Returns how many bytes the process
  // had more at most during the second one.
  int64_t Attack(const std::string& name, const std::string& attack, int times = 3) {
    AttackBy(name, kPreface + attack, times);
    AttackBy(name + ", acknowledged", kAcknowledged + attack, times);
    return peak_;
  }

  void AttackBy(const std::string& name, const std::string& bytes, int times) {
    Send(bytes);  // What is allocated once, and kept, is not counted.
    ASSERT_TRUE(Answers()) << name;
    const int64_t resident = ResidentBytes();
    ASSERT_TRUE(WriteFile("/proc/self/clear_refs", "5"));
    const double cpu = ServerCpuSeconds();
    int64_t taken = 0;
    for (int i = 0; i < times; ++i) {
      Send(bytes, &taken);
      ASSERT_TRUE(Answers()) << name;
    }

    const double used = ServerCpuSeconds() - cpu;
    peak_ = PeakBytes() - resident;
    // It goes on to free what the attack has left while it answers others. On a busy machine that
    // may take thousands of answers.
    int64_t grown = ResidentBytes() - resident;
    for (int i = 0; i < 10'000 && grown > kMaxGrowthBytes; ++i) {
      ASSERT_TRUE(Answers()) << name;
      grown = ResidentBytes() - resident;
    }
    std::printf(
        "[abuse] %-40s %8.2f MiB taken, %6.3f CPU s, %6.1f ns a byte, memory %+.1f MiB, at most "
        "%+.1f MiB\n",
        name.c_str(), static_cast<double>(taken) / (1 << 20), used,
        1e9 * used / static_cast<double>(taken), static_cast<double>(grown) / (1 << 20),
        static_cast<double>(peak_) / (1 << 20));
    EXPECT_LE(grown, kMaxGrowthBytes) << name;
    // The call of another client after each attack costs something as well.
    EXPECT_LE(used, kMaxCpuSecondsPerByte * static_cast<double>(taken) + 0.05 * times) << name;
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
  int64_t peak_ = 0;  // Of the last attack.
};

TEST_F(AbuseTest, WhatIsNotHttp2IsDropped) {
  for (const std::string& bytes :
       {std::string(1 << 16, 'x'), std::string(1 << 16, '\0'),
        std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01", 6), kPreface.substr(0, 10),
        kPreface + std::string(1 << 16, '\xff')}) {
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
      MakeFrame(kHeaders, kEndHeaders | kEndStream, 1, Header(":method", "POST")),
      MakeFrame(kHeaders, kEndHeaders | kEndStream, 1,
                Header(":path", "/sluice.queue.v1.QueueService/Stats") + Header("te", "trailers")),
      MakeFrame(kHeaders, kEndHeaders | kEndStream, 1, Header("te", "trailers") + CallHeaders()),
      MakeFrame(kHeaders, kEndHeaders | kEndStream, 1, ""),
      // Huffman codes: the end of the string within it, and padding that is none.
      CallWith(std::string("\x00\x84\xff\xff\xff\xff\x01x", 8)),
      CallWith(std::string("\x00\x81\x00\x01x", 5)),
      // Sizes of the table of headers: above the limit, and not at the begin of the block.
      MakeFrame(kHeaders, kEndHeaders, 1, "\x3f\xe1\xff\xff\x7f" + CallHeaders()),
      CallWith("\x20"),
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
      MakeFrame(kHeaders, kEndHeaders, 0, CallHeaders()),
      MakeFrame(kHeaders, kEndHeaders, 2, CallHeaders()),
      MakeFrame(kData, kEndStream, 7, "x"),
      MakeFrame(kSettings, 0, 0, "odd"),
      MakeFrame(kSettings, 0, 0, BigEndian(0x00047fff, 4) + BigEndian(0xffffffff, 4)),
      MakeFrame(kWindowUpdate, 0, 0, BigEndian(0, 4)),
      Repeated(MakeFrame(kWindowUpdate, 0, 0, BigEndian(0x7fffffff, 4)), 4),
      MakeFrame(kPing, 0, 0, "short"),
      MakeFrame(kContinuation, kEndHeaders, 1, CallHeaders()),
  };
  ASSERT_GE(wrong.size(), 24u);
  for (size_t i = 0; i < wrong.size(); ++i) {
    Send(kPreface + wrong[i]);
    EXPECT_TRUE(Answers()) << i;
  }
}

TEST_F(AbuseTest, AHeaderBlockAboveTheLimitReachesNoService) {
  const auto call = [](const std::string& header) {
    const std::string block = CallHeaders() + header;
    return kAcknowledged + MakeFrame(kHeaders, 0, 1, block.substr(0, 16000)) +
           MakeFrame(kContinuation, kEndHeaders, 1,
                     block.size() > 16000 ? block.substr(16000) : "") +
           MakeFrame(kData, kEndStream, 1, std::string(5, '\0'));
  };
  Send(call(Header("a", std::string(15 << 10, 'x'))), nullptr, /*await_answer=*/true);
  EXPECT_EQ(queue_.calls, 1);
  Send(call(Header("a", std::string(17 << 10, 'x'))), nullptr, /*await_answer=*/true);
  EXPECT_EQ(queue_.calls, 1);
  std::string many;
  for (int i = 0; i < 1000; ++i) many += Header(absl::StrCat("name", i), "value");
  Send(call(many), nullptr, /*await_answer=*/true);
  EXPECT_EQ(queue_.calls, 1);
}

TEST_F(AbuseTest, AFloodCostsNeitherMemoryNorMuchTimeAndKeepsNobodyElseFromAnAnswer) {
  const std::string large = Header("a", std::string(16000, 'x'));
  const std::string many = Repeated(Header("a", "b"), 3000);
  // Each is kept in the table of headers, and pushes the ones before it out.
  const std::string indexed = "\x40" + Header("a", std::string(3000, 'x')).substr(1);
  const std::string begin = MakeFrame(kHeaders, 0, 1, CallHeaders());
  Attack("large header",
         begin + MakeFrame(kContinuation, kEndHeaders, 1, Repeated(large, 1)) +
             MakeFrame(kData, kEndStream, 1, std::string(5, '\0')),
         100);
  Attack("CONTINUATION, large", begin + Repeated(MakeFrame(kContinuation, 0, 1, large), 1500));
  Attack("CONTINUATION, many headers",
         begin + Repeated(MakeFrame(kContinuation, 0, 1, many), 1000));
  Attack("CONTINUATION, indexed",
         begin + Repeated(MakeFrame(kContinuation, 0, 1, Repeated(indexed, 5)), 1000));
  Attack("CONTINUATION, empty", begin + Repeated(MakeFrame(kContinuation, 0, 1, ""), 100000));
  Attack("PING", Repeated(MakeFrame(kPing, 0, 0, "12345678"), 100000));
  Attack(
      "SETTINGS",
      Repeated(MakeFrame(kSettings, 0, 0, BigEndian(0x00030000, 4) + BigEndian(100, 2)), 100000));
  Attack("SETTINGS, window",
         Repeated(MakeFrame(kSettings, 0, 0, BigEndian(0x0004, 2) + BigEndian(0x7fff, 4)) +
                      MakeFrame(kSettings, 0, 0, BigEndian(0x0004, 2) + BigEndian(1, 4)),
                  50000));
  Attack("WINDOW_UPDATE", Repeated(MakeFrame(kWindowUpdate, 0, 0, BigEndian(1, 4)), 100000));
}

TEST_F(AbuseTest, CallsThatAreResetAtOnceCostNoMoreThanCalls) {
  std::string resets, unread;
  for (uint32_t stream = 1; stream < 20000; stream += 2) {
    const std::string call = MakeFrame(kHeaders, kEndHeaders, stream, CallHeaders());
    resets += call + MakeFrame(kReset, 0, stream, BigEndian(8, 4));
    unread += call;
  }
  Attack("HEADERS and RST_STREAM", resets);
  // Only as many calls as the limit of streams says are kept open.
  EXPECT_LE(Attack("HEADERS without an end", unread), kMaxGrowthBytes);
}

// A server whose gRPC may hold little for all connections together.
class AbuseOfLittleMemoryTest : public AbuseTest {
 protected:
  AbuseOfLittleMemoryTest() : AbuseTest({.buffer_limit = size_t{32} << 20}) {}
};

TEST_F(AbuseOfLittleMemoryTest, WhatOneClientSendsDoesNotUseUpWhatOthersNeed) {
  const std::string many = Repeated(Header("a", "b"), 3000);
  Attack("CONTINUATION, little memory", MakeFrame(kHeaders, 0, 1, CallHeaders()) +
                                            Repeated(MakeFrame(kContinuation, 0, 1, many), 1000));
}

}  // namespace
}  // namespace sluice::rpc
