// A daemon as the supervisor expects one: it prints a line of JSON with its addresses, then runs
// until a signal ends it.
//   test_daemon [fail|stubborn] .. --listen HOST:PORT --ops HOST:PORT

#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "fail") == 0) {
    std::fprintf(stderr, "port 1 is taken\n");
    return 3;
  }
  if (argc > 1 && std::strcmp(argv[1], "stubborn") == 0) std::signal(SIGTERM, SIG_IGN);
  const char* listen = "";
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], "--listen") == 0) listen = argv[i + 1];
  }
  // If any port will do, it invents one; otherwise it keeps the one that is asked for.
  const bool any = std::strcmp(listen, "127.0.0.1:0") == 0;
  std::printf("{\"listening\": \"%s\", \"ops\": \"127.0.0.1:5\"}\n",
              any ? "127.0.0.1:4321" : listen);
  std::fflush(stdout);
  for (;;) pause();
}
