/* Nanoseconds per call: `call_cost KIND ROUNDS`, the best of so many rounds of 20,000 calls, each shorter than a time slice
 * of a busy machine. KIND: other, body, exchange; "watched-other" is `other` in a process that has a connection. Prints
 * "ready", then a number for each line on standard input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static const char REQUEST[] = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n";
static const char GET[] = "GET /x HTTP/1.1\r\nHost: a\r\nUser-Agent: call_cost\r\nX-Request-Id: 1234567890\r\n\r\n";
static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/plain\r\n\r\n";

int main(int argc, char **argv) {
  const char *kind = argv[1];
  long calls = 20000, rounds = atol(argv[2]);
  int pair[2];
  char buffer[4096], line[16];
  (void)argc;
  if (strcmp(kind, "other")) {
    /* What makes the recorder watch a process. */
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listen(listener, 1))
      return 1;
  }
  socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof(line), stdin)) {
    double best = 1e18;
    for (long round = 0; round < rounds; round++) {
      double begin;
      long done = 0;
      if (!strcmp(kind, "body")) {
        write(pair[0], REQUEST, sizeof(REQUEST) - 1);
        read(pair[1], buffer, sizeof(buffer));
      }
      begin = now();
      if (strstr(kind, "other"))
        for (; done < calls; done++)
          syscall(SYS_getppid);
      else if (!strcmp(kind, "body"))
        for (; done < calls; done += 2) {
          write(pair[0], "0123456789012345678901234567890123456789", 40);
          read(pair[1], buffer, sizeof(buffer));
        }
      else
        for (; done < calls; done += 4) {
          write(pair[0], GET, sizeof(GET) - 1);
          read(pair[1], buffer, sizeof(buffer));
          write(pair[1], ANSWER, sizeof(ANSWER) - 1);
          read(pair[0], buffer, sizeof(buffer));
        }
      double each = (now() - begin) / done;
      if (each < best)
        best = each;
    }
    printf("%.1f\n", best);
    fflush(stdout);
  }
  return 0;
}
