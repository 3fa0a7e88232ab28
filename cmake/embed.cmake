# Writes a C++ source with the bytes of files, each as an absl::string_view named after its file
# (app.js becomes app_js). sluice_embed() runs it:
#   cmake -DOUT=page.cc -DNAMESPACE=sluice::controller::page "-DFILES=a.html;b.js" -P embed.cmake
set(text "#include \"absl/strings/string_view.h\"\n\nnamespace ${NAMESPACE} {\n")
foreach(file ${FILES})
  get_filename_component(name "${file}" NAME)
  string(MAKE_C_IDENTIFIER "${name}" name)
  file(READ "${file}" hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR bytes "${digits} / 2")
  # One string literal for each 32 bytes; the compiler joins them.
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" hex "${hex}")
  set(line "")
  foreach(byte RANGE 1 32)
    string(APPEND line "\\\\x[0-9a-f][0-9a-f]")
  endforeach()
  string(REGEX REPLACE "(${line})" "\\1\"\n    \"" hex "${hex}")
  string(APPEND text "extern const absl::string_view ${name};\n"
    "const absl::string_view ${name}(\n    \"${hex}\",\n    ${bytes});\n")
endforeach()
file(WRITE "${OUT}" "${text}}  // namespace ${NAMESPACE}\n")
