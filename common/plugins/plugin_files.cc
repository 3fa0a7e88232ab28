#include "common/plugins/plugin_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kMaxFiles = 1000;
constexpr uint64_t kMaxBytes = 64 << 20;

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The modules that a line of Python imports, with dots: "a.b" for `import a.b`; "a" and "a.c" for
// `from a import c`, where c may be a module or not. A leading dot is kept.
std::vector<std::string> ImportsOf(absl::string_view line) {
  line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
  std::vector<std::string> names;
  const auto first_word = [](absl::string_view text) {
    text = absl::StripAsciiWhitespace(text);
    return std::string(text.substr(0, text.find_first_of(" \t;(),")));
  };
  if (absl::ConsumePrefix(&line, "import ")) {
    for (const absl::string_view part : absl::StrSplit(line, ','))
      names.push_back(first_word(part));
  } else if (absl::ConsumePrefix(&line, "from ")) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" import", 1));
    const std::string module = first_word(halves.first);
    names.push_back(module);
    for (const absl::string_view part : absl::StrSplit(halves.second, absl::ByAnyChar("(),"))) {
      const std::string name = first_word(part);
      if (!name.empty())
        names.push_back(absl::StrCat(module, absl::EndsWith(module, ".") ? "" : ".", name));
    }
  }
  return names;
}

// The files of a module's name: of "a.b" a/__init__.py, a/b.py and a/b/__init__.py, as far as they
// are below `root`. `from_folder` is where relative imports start.
void AddModule(std::string name, const std::string& root, std::string from_folder,
               std::vector<std::string>* found) {
  std::string folder = root;
  if (absl::StartsWith(name, ".")) {
    name.erase(0, 1);
    folder = std::move(from_folder);
    while (absl::StartsWith(name, ".") && folder.size() > root.size()) {
      name.erase(0, 1);
      folder = FolderOf(folder);
    }
  }
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(name, '.', absl::SkipEmpty()))) {
    if (part.find('/') != std::string::npos) return;
    absl::StrAppend(&folder, "/", part);
    for (const std::string& file : {folder + ".py", folder + "/__init__.py"}) {
      if (PathExists(file)) found->push_back(file);
    }
  }
}

// Adds a Python file and what it imports to `files`.
absl::Status AddPython(const std::string& path, const std::string& root,
                       std::set<std::string>* files) {
  std::vector<std::string> next = {path};
  while (!next.empty()) {
    const std::string file = std::move(next.back());
    next.pop_back();
    if (!files->insert(file).second) continue;
    if (files->size() > kMaxFiles) {
      return absl::InvalidArgumentError(absl::StrCat("plug-in ", path, " imports more than ",
                                                     kMaxFiles, " files below its folder"));
    }
    SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxBytes));
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      for (const std::string& name : ImportsOf(line)) AddModule(name, root, FolderOf(file), &next);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PluginFiles(const PluginSpec& spec) {
  std::set<std::string> files;
  std::vector<std::string> own = {spec.file};
  for (const std::string& word : spec.command) {
    if (absl::StartsWith(word, "/") && PathExists(word) && !std::filesystem::is_directory(word))
      own.push_back(word);
  }
  for (const std::string& file : own) {
    if (absl::EndsWith(file, ".py")) {
      SLUICE_RETURN_IF_ERROR(AddPython(file, FolderOf(file), &files));
    } else {
      files.insert(file);
    }
  }
  return std::vector<std::string>(files.begin(), files.end());
}

std::string FileStamps(const std::vector<std::string>& files) {
  std::string stamps;
  for (const std::string& file : files) {
    struct stat stat = {};
    if (::stat(file.c_str(), &stat) != 0) stat = {};
    absl::StrAppend(&stamps, stat.st_ino, " ", stat.st_size, " ", stat.st_mtim.tv_sec, ".",
                    stat.st_mtim.tv_nsec, "\n");
  }
  return stamps;
}

absl::StatusOr<std::string> PluginVersion(const PluginSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> files, PluginFiles(spec));
  const std::string root = FolderOf(spec.file) + "/";
  Sha256Stream hash;
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    const absl::StatusOr<FileDigest> digest = DigestFile(file);
    if (!digest.ok()) return Annotate(digest.status(), "the plug-in");
    bytes += digest->bytes;
    if (bytes > kMaxBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("plug-in ", spec.file, " has more than ", kMaxBytes >> 20, " MiB of files"));
    }
    hash.Update(absl::StrCat(absl::StripPrefix(file, root), absl::string_view("\0", 1)));
    hash.Update(digest->sha256);
  }
  return ToHex(hash.Finish());
}

}  // namespace sluice
