#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// Operations of Python's str on UTF-8 texts, which must be well-formed. Positions count code
// points.
namespace sluice::chat {

bool IsAscii(absl::string_view text);
size_t CountCodePoints(absl::string_view text);
// Returns the byte where code point `n` begins; the text's size if the text is not longer.
size_t ByteOf(absl::string_view text, size_t n);
// Returns the code point at byte *at, and moves *at behind it.
char32_t NextCodePoint(absl::string_view text, size_t* at);
// Returns the code points of the text, each as a view.
std::vector<absl::string_view> SplitCodePoints(absl::string_view text);

// The value of a decimal digit of any script; -1 for other characters. int() reads these.
int DecimalValue(char32_t c);
bool IsDigit(char32_t c);      // str.isdigit: also superscripts, which int() does not read.
bool IsSpace(char32_t c);      // str.isspace
bool IsPrintable(char32_t c);  // str.isprintable; repr() escapes other characters.
// str.isupper: there is a cased letter, and none in lower or title case.
bool IsUpper(absl::string_view text);
bool IsLower(absl::string_view text);

// Full case mappings of Unicode: sharp s becomes SS, a final sigma gets its own form.
std::string Upper(absl::string_view text);
std::string Lower(absl::string_view text);
std::string Capitalize(absl::string_view text);  // str.capitalize
std::string Title(absl::string_view text);       // str.title

enum Side { kLeft = 1, kRight = 2, kBoth = 3 };
absl::string_view StripSpace(absl::string_view text, Side side);
absl::string_view StripAnyOf(absl::string_view text, absl::string_view code_points, Side side);

// str.splitlines: lines also end at \v \f \x1c-\x1e U+0085 U+2028 U+2029; \r\n is one end.
std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends);
bool IsWord(char32_t c);  // \w of Python's re: letters, digits, _.
// str.find on bytes, in time linear in both lengths; npos if absent.
size_t FindText(absl::string_view text, absl::string_view wanted, size_t from = 0);

}  // namespace sluice::chat
