// Measures how fast one thread encodes and decodes.
//   bench_tokenizer --tokenizer tokenizer.json --text NAME=FILE [--text ..] [--seconds 1] [--json]
// compare.py runs this and the Python package `tokenizers` on the same files and prints the ratios.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/bench/report.h"

namespace sluice::bench {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs `pass` for `seconds`, at least three times. The figure is the median rate of the passes, in
// MB of `bytes` per second.
template <typename Pass>
Figure Measure(const std::string& name, size_t bytes, double seconds, const Pass& pass) {
  pass();  // Warms the caches.
  std::vector<double> rates;
  for (const double end = Now() + seconds; Now() < end || rates.size() < 3;) {
    const double start = Now();
    pass();
    rates.push_back(static_cast<double>(bytes) / 1e6 / (Now() - start));
  }

  return {
      .name = name, .value = Median(rates), .unit = "MB/s", .runs = static_cast<int>(rates.size())};
}

template <typename T>
T OrExit(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", std::string(value.status().message()).c_str());
  std::exit(2);
}

int Main(int argc, char** argv) {
  CLI::App app("Measures how fast one thread encodes and decodes texts with a tokenizer.json.");
  std::string tokenizer_path;
  std::vector<std::string> texts;
  double seconds = 1;
  bool json = false;
  app.add_option("--tokenizer", tokenizer_path, "the tokenizer.json")->required();
  app.add_option("--text", texts, "NAME=FILE, a text to encode; may be repeated")
      ->required()
      ->allow_extra_args(false);
  app.add_option("--seconds", seconds, "seconds of each measurement")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app.add_flag("--json", json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  const Report report(json);
  const double start = Now();
  const auto tokenizer = OrExit(Tokenizer::Load(tokenizer_path));
  report.Add({.name = "load", .value = Now() - start, .unit = "s"});

  for (const std::string& argument : texts) {
    const std::pair<std::string, std::string> named =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    // Cuts the text into documents as compare.py does: pieces of up to 64 KiB that end at the end
    // of a line.
    const std::string text = OrExit(ReadFile(named.second));
    std::vector<absl::string_view> documents;

    for (absl::string_view rest = text; !rest.empty();) {
      const size_t line = rest.size() <= 65536 ? absl::string_view::npos : rest.rfind('\n', 65536);
      const size_t end = rest.size() <= 65536              ? rest.size()
                         : line == absl::string_view::npos ? rest.find('\n') + 1
                                                           : line + 1;
      documents.push_back(rest.substr(0, end == 0 ? rest.size() : end));
      rest.remove_prefix(documents.back().size());
    }

    std::vector<std::vector<int32_t>> ids(documents.size());
    report.Add(Measure(absl::StrCat("encode.", named.first), text.size(), seconds, [&] {
      for (size_t i = 0; i < documents.size(); ++i)
        ids[i] = OrExit(tokenizer->Encode(documents[i], {.add_special = false}));
    }));

    size_t tokens = 0;
    for (const auto& list : ids) tokens += list.size();
    report.Add({.name = absl::StrCat("tokens.", named.first),
                .value = static_cast<double>(tokens),
                .unit = "tokens"});
    report.Add(Measure(absl::StrCat("decode.", named.first), text.size(), seconds, [&] {
      for (const auto& list : ids) tokenizer->Decode(list, false);
    }));
  }

  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
