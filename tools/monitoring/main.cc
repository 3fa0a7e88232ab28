#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "tools/monitoring/files.h"

int main(int argc, char** argv) {
  std::string folder;
  CLI::App app{
      "Writes the dashboards, rules and the list of metrics that are made of DIR/table.yaml. It "
      "prints the files that changed.",
      "monitoring"};
  app.add_option("DIR", folder, "deploy/monitoring")->required();
  app.footer("Example: monitoring deploy/monitoring");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  const auto table = sluice::monitoring::ReadTable(absl::StrCat(folder, "/table.yaml"));
  if (!table.ok()) {
    std::fprintf(stderr, "monitoring: error: %s\n", std::string(table.status().message()).c_str());
    return 1;
  }
  for (const auto& [name, text] : sluice::monitoring::MakeFiles(*table)) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (sluice::ReadFile(path).value_or("") == text) continue;
    absl::Status written = sluice::MakeDirs(path.substr(0, path.rfind('/')));
    if (written.ok()) written = sluice::WriteFileAtomic(path, text);
    if (!written.ok()) {
      std::fprintf(stderr, "monitoring: error: %s\n", std::string(written.message()).c_str());
      return 1;
    }
    std::printf("%s\n", path.c_str());
  }
  return 0;
}
