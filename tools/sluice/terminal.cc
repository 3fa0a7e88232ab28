#include "tools/sluice/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/string_view.h"

namespace sluice::cli {

bool IsTerminal(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(out)) && std::getenv("NO_COLOR") == nullptr &&
         (term == nullptr || absl::string_view(term) != "dumb");
}

int TerminalColumns(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

int TerminalRows(std::FILE* out) {
  winsize size{};
  return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 40;
}

std::string CutToColumns(const std::string& line, int columns) {
  int width = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xc0) != 0x80 && ++width > columns)
      return line.substr(0, i);
  }
  return line;
}

}  // namespace sluice::cli
