// Measures how long a chat template takes to compile, and to render a conversation.
//
//   bench_chat_template [--json] [--text] CONVERSATION.json TEMPLATE.jinja..
//
// CONVERSATION.json holds the template's variables. With --text it prints what the templates
// render, one JSON string per line, instead of figures; compare.py compares this with what Python
// renders.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/chat/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/bench/report.h"

namespace sluice {
namespace {

constexpr int kRuns = 15;             // Each figure is the median of this many runs.
constexpr double kRunSeconds = 0.02;  // Each run repeats the call for this long.

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The median time of a call, in microseconds.
template <typename Call>
double MedianMicroseconds(Call call) {
  std::vector<double> runs;
  for (int run = 0; run < kRuns; ++run) {
    const double start = Seconds();
    int calls = 0;
    do {
      call();
      ++calls;
    } while (Seconds() - start < kRunSeconds);
    runs.push_back(1e6 * (Seconds() - start) / calls);
  }

  return bench::Median(runs);
}

std::string NameOf(absl::string_view path) {
  if (const size_t slash = path.rfind('/'); slash != absl::string_view::npos)
    path = path.substr(slash + 1);
  return std::string(path.substr(0, path.find('.')));
}

std::string MustRead(const std::string& path) {
  auto text = ReadFile(path);
  SLUICE_CHECK_MSG(text.ok(), text.status().ToString());
  return *std::move(text);
}

int Main(const std::vector<std::string>& paths, bool json, bool text) {
  const auto variables = nlohmann::ordered_json::parse(MustRead(paths[0]));
  const bench::Report report(json);
  for (size_t i = 1; i < paths.size(); ++i) {
    const std::string source = MustRead(paths[i]), name = NameOf(paths[i]);
    const auto compiled = ChatTemplate::Compile(source);
    SLUICE_CHECK_MSG(compiled.ok(), absl::StrCat(paths[i], ": ", compiled.status().ToString()));

    // The same time as in compare.py.
    const ChatTemplate::Options options{.now = absl::UnixEpoch()};
    const auto rendered = (*compiled)->Render(variables, options);
    SLUICE_CHECK_MSG(rendered.ok(), absl::StrCat(paths[i], ": ", rendered.status().ToString()));

    if (text) {
      std::printf("%s\n", nlohmann::json(*rendered).dump().c_str());
      continue;
    }

    report.Add({.name = "chat_template_render/" + name,
                .value = MedianMicroseconds(
                    [&] { SLUICE_CHECK((*compiled)->Render(variables, options).ok()); }),
                .unit = "us",
                .runs = kRuns});
    report.Add(
        {.name = "chat_template_compile/" + name,
         .value = MedianMicroseconds([&] { SLUICE_CHECK(ChatTemplate::Compile(source).ok()); }),
         .unit = "us",
         .runs = kRuns});
  }

  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  CLI::App app("Measures the time to compile and to render chat templates.");
  std::vector<std::string> paths;
  bool json = false, text = false;
  app.add_option("FILES", paths, "CONVERSATION.json TEMPLATE.jinja ..")
      ->required()
      ->expected(2, 1000);
  app.add_flag("--text", text, "print what each template renders, and measure nothing");
  app.add_flag("--json", json, "print one JSON object per line");
  CLI11_PARSE(app, argc, argv);

  return sluice::Main(paths, json, text);
}
