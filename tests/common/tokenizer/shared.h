#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "common/testing/data.h"
#include "common/tokenizer/tokenizer.h"

namespace sluice::shared_tokenizers {

constexpr const char* kNames[] = {"gpt2",    "qwen3",  "smollm2",         "deepseek-v3",
                                  "gpt-oss", "cl100k", "mistral-7b-v0.1", "mistral-7b-v0.1-legacy"};

inline std::string Folder(const std::string& name) {
  return testing_data::Path("tokenizers/" + name);
}

// Returns the unpacked tokenizer.json of a shared tokenizer, or "" if the file is absent.
inline std::string Json(const std::string& name) {
  std::string json;
  FILE* const pipe = popen(("gzip -dc '" + Folder(name) + "/tokenizer.json.gz'").c_str(), "r");
  if (pipe == nullptr) return json;
  char buffer[65536];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) json.append(buffer, n);
  pclose(pipe);
  return json;
}

}  // namespace sluice::shared_tokenizers
