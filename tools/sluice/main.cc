#include "tools/sluice/app.h"
#include "tools/sluice/completion.h"

int main(int argc, char** argv) {
  sluice::cli::SluiceApp app;
  // Before the parser, which would refuse the unfinished words.
  if (argc > 2 && std::string(argv[1]) == sluice::cli::kCompleteCommand) {
    const std::vector<std::string> words(argv + 3, argv + argc);
    sluice::cli::PrintCandidates(
        argv[2], sluice::cli::CompleteWords(app.parser(), words, sluice::cli::FindNamesOf));
    return sluice::cli::kDone;
  }
  try {
    app.parser().parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.parser().exit(error) == 0 ? sluice::cli::kDone : sluice::cli::kMisuse;
  }
  return app.Run();
}
