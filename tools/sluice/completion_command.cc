// sluice completion: prints what a shell needs to complete command lines.

#include <cstdio>
#include <memory>

#include "tools/sluice/commands.h"
#include "tools/sluice/completion.h"
#include "tools/sluice/options.h"

namespace sluice::cli {

std::vector<Command> CompletionCommands() {
  return {{"", "completion",
           "Print the script with which a shell completes commands, options and names of jobs.",
           "  source <(sluice completion bash)    # in ~/.bashrc\n"
           "  sluice completion zsh > ~/.zsh/_sluice\n  sluice completion fish | source",
           [](CLI::App* app) {
             auto shell = std::make_shared<std::string>();
             app->add_option("SHELL", *shell, "bash, zsh or fish")
                 ->required()
                 ->check(CLI::IsMember({"bash", "zsh", "fish"}));
             return [shell] {
               std::fputs(CompletionScript(*shell).c_str(), stdout);
               return kDone;
             };
           }}};
}

}  // namespace sluice::cli
