#include "tools/sluice/app.h"

int main(int argc, char** argv) {
  sluice::cli::SluiceApp app;
  try {
    app.parser().parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.parser().exit(error) == 0 ? sluice::cli::kDone : sluice::cli::kMisuse;
  }
  return app.Run();
}
