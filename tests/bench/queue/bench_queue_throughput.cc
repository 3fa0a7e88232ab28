// Measures how fast payload goes into the queue and comes out again, with a sluice-queue process
// and a rollout's client. Every byte that comes back is compared. The payloads are 1024 samples of
// 9 fields of 8192 floats, records of 1 KiB, and ragged pieces of 8k tokens, over gRPC and over
// shared memory. Small calls are measured while bulk data flows, at full speed and at 1 GB/s. The
// baselines are memcpy, bare TCP and a naive queue.
//
//   bench_queue_throughput [--json] [--durability memory|metadata|full] [--samples 1024]
//     [--rounds 3] [--only samples_shm]

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/queue/throughput_baselines.h"
#include "tests/bench/queue/throughput_queue.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

// The payload of each member: records with named columns, all cut from one buffer. With `tokens` a
// record is a piece and has columns; otherwise it has whole fields.
struct Shape {
  std::string name;
  struct Column {
    std::string name;
    common::v1::Dtype dtype;
    size_t bytes;  // In one record.
    std::vector<uint32_t> rows;
  };
  std::vector<Column> columns;
  size_t records = 1;   // Records of each member.
  uint32_t tokens = 0;  // Tokens of each record; 0: whole fields.

  size_t record_bytes() const {
    size_t bytes = 0;
    for (const Column& column : columns) bytes += column.bytes;
    return bytes;
  }
};

Shape Samples() {
  Shape shape{.name = "samples"};
  for (int f = 0; f < 9; ++f)
    shape.columns.push_back({absl::StrCat("field", f), common::v1::DTYPE_F32, 8192 * 4, {}});
  return shape;
}

Shape Small() {
  return {.name = "records_1k", .columns = {{"r", common::v1::DTYPE_U8, 1024, {}}}, .records = 64};
}

// A piece of 8192 tokens with their log-probs, the kept tokens of each (ragged), and the routing to
// 2 experts in each of 4 layers.
Shape Tokens() {
  Shape shape{.name = "tokens_8k", .tokens = 8192};
  Shape::Column kept{"kept_tokens", common::v1::DTYPE_U8, 0, {}};
  for (uint32_t i = 0; i < 8192; ++i) {
    kept.rows.push_back(4 + i % 13);
    kept.bytes += kept.rows.back();
  }

  // Pads the column, so that the next one begins at a whole word.
  kept.rows.back() += static_cast<uint32_t>((4 - kept.bytes % 4) % 4);
  kept.bytes += (4 - kept.bytes % 4) % 4;
  shape.columns = {{"tokens", common::v1::DTYPE_I32, 8192 * 4, {}},
                   {"logprobs", common::v1::DTYPE_F32, 8192 * 4, {}},
                   kept,
                   {"routing", common::v1::DTYPE_U16, 8192 * 16, {}}};

  return shape;
}

// Limits a flow of bytes to a rate, counted from construction.
class Pace {
 public:
  // The rate 0 sets no limit.
  explicit Pace(double bytes_per_second) : rate_(bytes_per_second), start_(WallSeconds()) {}

  // Counts `bytes`, and sleeps until the rate allows them.
  void CountAndWait(size_t bytes) {
    bytes_ += static_cast<double>(bytes);
    if (rate_ == 0) return;
    const double early = start_ + bytes_ / rate_ - WallSeconds();
    if (early > 0) std::this_thread::sleep_for(std::chrono::duration<double>(early));
  }

 private:
  const double rate_, start_;
  double bytes_ = 0;
};

struct Round {
  double put_seconds = 0, get_seconds = 0, cpu_put = 0, cpu_get = 0;
};

class Bench {
 public:
  Bench(const Shape& shape, size_t members, bool shared_memory, std::string durability)
      : shape_(shape),
        count_(members * shape.records),
        queue_({.shared_memory = shared_memory,
                .durability = durability,
                .groups = static_cast<uint32_t>(members / QueueUnderTest::kMembers),
                .member_bytes = shape.record_bytes() * shape.records + (64 << 10)}),
        sent_(std::make_shared<std::string>(count_ * shape.record_bytes(), '\0')),
        received_(sent_->size(), '\1') {}

  size_t bytes() const { return sent_->size(); }
  size_t records() const { return count_; }
  QueueUnderTest& queue() { return queue_; }

  Round Run(uint32_t seed, double bytes_per_second = 0) {
    // Small positive words are finite in any dtype, as floats and as tokens.
    for (size_t i = 0; i + 4 <= sent_->size(); i += 4) {
      const uint32_t word = static_cast<uint32_t>(i * 2654435761u + seed) & 0x3fffffff;
      std::memcpy(sent_->data() + i, &word, 4);
    }

    const auto members = queue_.Admit(count_ / shape_.records);
    if (shape_.tokens > 0) queue_.PutPrompts(members);
    Round round;
    round.put_seconds = TimeWork(&round.cpu_put, [&] { PutAll(members, Pace(bytes_per_second)); });
    round.get_seconds = TimeWork(&round.cpu_get, [&] { GetAll(members, Pace(bytes_per_second)); });
    SLUICE_CHECK_MSG(received_ == *sent_, absl::StrCat(shape_.name, ": what came back differs"));
    std::memset(received_.data(), 1, received_.size());
    queue_.Drop(members);

    return round;
  }

 private:
  double TimeWork(double* cpu, const std::function<void()>& work) {
    const double used = OwnCpuSeconds() + CpuSeconds(queue_.pid()), start = WallSeconds();
    work();
    const double seconds = WallSeconds() - start;
    *cpu = OwnCpuSeconds() + CpuSeconds(queue_.pid()) - used;
    return seconds;
  }

  void PutAll(const std::vector<QueueUnderTest::Member>& members, Pace pace) {
    PutStream stream(queue_.client(), {.buffer_bytes = size_t{4} << 30});
    const char* at = sent_->data();
    for (const auto& member : members) {
      for (size_t r = 0; r < shape_.records; ++r) {
        common::v1::Record record;
        *record.mutable_owner() = member.ref;
        record.set_lease(member.lease);
        std::vector<rpc::PayloadSlice> payload;

        for (const Shape::Column& column : shape_.columns) {
          // Whole fields come back sorted by name, so all numbers have five digits.
          const std::string name =
              shape_.records > 1 ? absl::StrCat(column.name, 10000 + r) : column.name;
          AddField(name, column.dtype, std::vector<int64_t>{static_cast<int64_t>(column.bytes)},
                   {at, column.bytes}, sent_, &record, &payload);
          record.mutable_fields(record.fields_size() - 1)
              ->mutable_rows()
              ->Add(column.rows.begin(), column.rows.end());
          at += column.bytes;
        }

        if (shape_.tokens > 0) FillPiece(record.mutable_piece());
        const absl::Status status =
            stream.Put(std::move(record), std::move(payload), [](const PutOutcome& outcome) {
              SLUICE_CHECK_MSG(outcome.status.ok(), outcome.status.ToString());
            });
        SLUICE_CHECK_MSG(status.ok(), status.ToString());
        pace.CountAndWait(shape_.record_bytes());
      }
    }

    SLUICE_CHECK(stream.Flush().ok());
  }
  void FillPiece(common::v1::Piece* piece) const {
    piece->set_at(1);
    piece->set_segment(1);
    piece->set_role(common::v1::SEGMENT_ROLE_SAMPLED);
    piece->set_trainable(true);
    piece->set_count(shape_.tokens);
    piece->add_runs()->mutable_version()->set_incarnation(1);
    piece->mutable_runs(0)->set_count(shape_.tokens);
  }

  void GetAll(const std::vector<QueueUnderTest::Member>& members, Pace pace) {
    std::vector<common::v1::Want> wants(members.size());
    for (size_t i = 0; i < members.size(); ++i) *wants[i].mutable_owner() = members[i].ref;
    char* at = received_.data();

    // Everything comes back in the order in which it was put: whole fields by name, pieces by
    // column.
    const absl::Status status =
        queue_.client()->Get(members[0].lease, wants, [&](const common::v1::Record& record, int f) {
          char* const place = at;
          at += record.fields(f).bytes();
          pace.CountAndWait(record.fields(f).bytes());
          SLUICE_CHECK(at <= received_.data() + received_.size());
          return place;
        });
    SLUICE_CHECK_MSG(status.ok(), status.ToString());
    SLUICE_CHECK(at == received_.data() + received_.size());
  }

  const Shape shape_;
  const size_t count_;
  QueueUnderTest queue_;
  const std::shared_ptr<std::string> sent_;
  std::string received_;
};

struct Latencies {
  std::vector<double> admit, renew, ack;

  void AddTo(const Report& report, const std::string& prefix, const std::string& when) const {
    for (const auto& [name, values] :
         {std::make_pair("admit", &admit), std::make_pair("renew", &renew),
          std::make_pair("ack", &ack)}) {
      for (const auto& [label, p] : {std::make_pair("p50", 0.5), std::make_pair("p99", 0.99)}) {
        report.Add({.name = absl::StrCat(prefix, "_", name, "_", label, "_", when),
                    .value = 1e3 * Quantile(*values, p),
                    .unit = "ms",
                    .runs = static_cast<int>(values->size())});
      }
    }
  }
};

// Makes small calls, one after the other: a Renew, an Admit that finds all slots taken and learns
// what it waits for, and a record of 1 KiB until it is acknowledged.
class SmallCaller {
 public:
  // Needs a `queue` of which others have taken all slots but those of the last group.
  explicit SmallCaller(QueueUnderTest* queue)
      : queue_(queue), stream_(queue->client()), members_(queue->Admit(QueueUnderTest::kMembers)) {}

  void Call(Latencies* all) {
    double start = WallSeconds();
    queue::v1::RenewRequest renew;
    renew.add_loaded()->mutable_version()->set_incarnation(1);
    renew.mutable_loaded(0)->set_verified(true);
    SLUICE_CHECK(queue_->client()->Renew(renew).ok());
    all->renew.push_back(WallSeconds() - start);
    start = WallSeconds();
    queue::v1::AdmitRequest admit;
    admit.set_room(1);
    admit.mutable_wait();
    const auto granted = queue_->client()->Admit(admit);
    SLUICE_CHECK_MSG(granted.ok(), granted.status().ToString());
    all->admit.push_back(WallSeconds() - start);

    // Slots are free between two rounds, so what was granted is given back.
    queue_->Release(QueueUnderTest::MembersOf(*granted));
    start = WallSeconds();
    if (Put()) all->ack.push_back(WallSeconds() - start);
  }

 private:
  // Returns false if the members' reservation is full.
  bool Put() {
    if (members_.empty()) return false;
    common::v1::Record record;
    *record.mutable_owner() = members_.back().ref;
    record.set_lease(members_.back().lease);
    std::string payload;
    AddField(absl::StrCat("small", ++records_), common::v1::DTYPE_U8, std::vector<int64_t>{1024},
             std::string(1024, 's'), &record, &payload);

    absl::Status stored;
    SLUICE_CHECK(stream_
                     .Put(std::move(record), std::move(payload),
                          [&](const PutOutcome& outcome) { stored = outcome.status; })
                     .ok());
    SLUICE_CHECK(stream_.Flush().ok());

    if (!stored.ok()) members_.pop_back();
    return stored.ok();
  }

  QueueUnderTest* const queue_;
  PutStream stream_;
  std::vector<QueueUnderTest::Member> members_;
  int records_ = 0;
};

void AddFigures(const Report& report, const std::string& name, double seconds, double cpu,
                size_t bytes, int runs, const NaiveCost* naive, bool put) {
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  const Cost* base = naive == nullptr ? nullptr : put ? &naive->put : &naive->get;
  report.Add({.name = name + "_gbps",
              .value = gigabytes / seconds,
              .unit = "GB/s",
              .baseline = base == nullptr ? 0 : gigabytes / base->seconds,
              .runs = runs});
  report.Add({.name = name + "_cpu",
              .value = cpu / gigabytes,
              .unit = "CPU s/GB",
              .baseline = base == nullptr ? 0 : base->cpu_seconds / gigabytes,
              .runs = runs});
}

void RunShape(const Report& report, const Shape& shape, size_t members, bool shared,
              std::string durability, int rounds, const NaiveCost* naive) {
  Bench bench(shape, members, shared, durability);
  const std::string prefix = absl::StrCat("queue_", shape.name, shared ? "_shm" : "_grpc");
  bench.Run(0);  // Warms the memory of both processes.
  std::vector<double> puts, gets, both;
  double cpu_put = 0, cpu_get = 0;

  for (int round = 0; round < rounds; ++round) {
    const Round cost = bench.Run(static_cast<uint32_t>(round) + 1);
    puts.push_back(cost.put_seconds);
    gets.push_back(cost.get_seconds);
    both.push_back(cost.put_seconds + cost.get_seconds);
    cpu_put += cost.cpu_put / rounds;
    cpu_get += cost.cpu_get / rounds;
  }

  AddFigures(report, prefix + "_put", Median(puts), cpu_put, bench.bytes(), rounds, naive, true);
  AddFigures(report, prefix + "_get", Median(gets), cpu_get, bench.bytes(), rounds, naive, false);
  const double naive_both = naive == nullptr ? 0 : naive->put.seconds + naive->get.seconds;
  report.Add({.name = prefix + "_put_and_get",
              .value = Median(both),
              .unit = "s",
              .baseline = naive_both,
              .runs = rounds});
  if (shape.records > 1)
    report.Add({.name = prefix + "_put_records",
                .value = static_cast<double>(bench.records()) / Median(puts),
                .unit = "1/s",
                .runs = rounds});

  // Small calls, alone and while bulk data flows.
  if (shape.name != "samples") return;
  Latencies idle;
  const auto taken = bench.queue().Admit(members);
  SmallCaller caller(&bench.queue());
  for (int call = 0; call < 500; ++call) caller.Call(&idle);
  bench.queue().Drop(taken);
  idle.AddTo(report, prefix, "idle");

  for (const auto& [when, rate] :
       {std::make_pair("while_bulk_flows", 0.0), std::make_pair("while_1gbps_flows", 1e9)}) {
    std::atomic<bool> stop = false;
    Latencies loaded;
    std::thread calls([&] {
      while (!stop) caller.Call(&loaded);
    });
    for (int round = 0; round < rounds; ++round)
      bench.Run(100u + static_cast<uint32_t>(round), rate);
    stop = true;
    calls.join();
    loaded.AddTo(report, prefix, when);
  }
}

NaiveCost MeasureBaselines(const Report& report, size_t samples) {
  const Shape shape = Samples();
  const size_t bytes = samples * shape.record_bytes();
  const auto base = [&](const std::string& name, const Cost& cost) {
    AddFigures(report, "baseline_" + name, cost.seconds, cost.cpu_seconds, bytes, 1, nullptr,
               false);
  };
  base("memcpy", CopyMemory(bytes));
  base("tcp", SendTcp(bytes));
  const NaiveCost naive = NaiveQueue(samples, shape.columns.size(), shape.columns[0].bytes);
  base("naive_put", naive.put);
  base("naive_get", naive.get);

  return naive;
}

int Run(int argc, char** argv) {
  bool json = false, naive_server = false;
  std::string durability = "memory";
  size_t samples = 1024;
  int rounds = 3;
  std::string only;
  CLI::App app("Measures how fast payload goes into the queue and out of it.");
  app.add_flag("--json", json, "print one JSON object per line");
  app.add_option("--durability", durability, "durability of the job, as in the job file")
      ->check(CLI::IsMember({"memory", "metadata", "full"}))
      ->capture_default_str();
  app.add_option("--samples", samples, "number of samples, a multiple of 8")
      ->check(CLI::Range(8, 1 << 16))
      ->capture_default_str();
  app.add_option("--rounds", rounds, "number of rounds; the figures are medians over the rounds")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--only", only,
                 "measure only the figures of this name, without baselines: samples_grpc, "
                 "records_1k_shm, ..");
  app.add_flag("--naive-server", naive_server)->group("");
  CLI11_PARSE(app, argc, argv);
  if (naive_server) return NaiveServer();
  const Report report(json);

  std::optional<NaiveCost> naive;
  if (only.empty()) naive = MeasureBaselines(report, samples);
  for (bool shared : {false, true}) {
    for (const Shape& shape : {Samples(), Small(), Tokens()}) {
      const std::string name = absl::StrCat(shape.name, shared ? "_shm" : "_grpc");
      if (!only.empty() && only != name) continue;
      RunShape(report, shape, samples, shared, durability, rounds,
               naive && shape.name == "samples" ? &*naive : nullptr);
    }
  }

  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Run(argc, argv); }
