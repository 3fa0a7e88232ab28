#pragma once

#include <cstdio>
#include <string>

namespace sluice::cli {

// Whether lines can be redrawn in place. That needs escape sequences, which NO_COLOR and TERM=dumb
// ask to leave out.
bool IsTerminal(std::FILE* out);

// The size of the terminal, or 120 x 40 if it is not known.
int TerminalColumns(std::FILE* out);
int TerminalRows(std::FILE* out);

// The first `columns` characters of a line. Each UTF-8 character counts as one column.
std::string CutToColumns(const std::string& line, int columns);

}  // namespace sluice::cli
