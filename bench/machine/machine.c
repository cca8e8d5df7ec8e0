// How slow this machine is at what a server does for every request, beside which its CPU is to be read: prints one JSON
// object, microseconds each.
//   syscall       one that does nothing (getppid)
//   loopback      64 bytes written to a TCP connection of the loopback address and read at its other end, by one thread
//   sleep         CPU of a sleep of 50 us
//   wake          an eventfd's write that wakes a thread on another core, which rests: what the writer spends (median)
//   woken         CPU that the woken thread spends on that: out of its read and into the next
//   wake_latency  from that write until the woken thread runs (median)
//   turn, turn_cpu  two threads on two cores wake one another by turns: time, and CPU of both, of one there and back
//                 (medians over parts of 20)
// With one core alone the figures of the second are 0. It takes a fifth of a second.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SYSCALLS = 5000, PACKETS = 1000, SLEEPS = 200, WAKES = 200, PARTS = 21, TURNS = 20 };

static void check(int good, const char *what) {
  if (good) return;
  perror(what);
  exit(1);
}

static double us(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void spin(double microseconds) {
  double end = us(CLOCK_MONOTONIC) + microseconds;
  while (us(CLOCK_MONOTONIC) < end)
    ;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
  qsort(values, count, sizeof *values, ascending);
  return values[count / 2];
}

// cores finds two that this process may use; it returns how many there are, 1 or 2.
static int cores(int at[2]) {
  cpu_set_t set;
  check(sched_getaffinity(0, sizeof set, &set) == 0, "sched_getaffinity");
  int found = 0;
  for (int i = 0; i < CPU_SETSIZE && found < 2; i++)
    if (CPU_ISSET(i, &set)) at[found++] = i;
  return found;
}

static void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  check(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

static void take(int fd) {
  uint64_t n;
  check(read(fd, &n, sizeof n) == sizeof n, "read of an eventfd");
}

static void give(int fd) {
  uint64_t one = 1;
  check(write(fd, &one, sizeof one) == sizeof one, "write to an eventfd");
}

// The second thread: it notes when each wake reached it, then answers turns.
struct other {
  int core, bell, back;
  _Atomic(uint64_t) woken; // ns, when the last wake was seen; 0: not yet
  double cpu;              // of all wakes
};

static void *other(void *argument) {
  struct other *o = argument;
  pin(o->core);
  give(o->back); // it runs
  double begin = us(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < WAKES; i++) {
    take(o->bell);
    atomic_store(&o->woken, (uint64_t)(1e3 * us(CLOCK_MONOTONIC)));
  }
  o->cpu = us(CLOCK_THREAD_CPUTIME_ID) - begin;
  for (int i = 0; i < PARTS * TURNS; i++) {
    take(o->bell);
    give(o->back);
  }
  return NULL;
}

static void wakes(struct other *o) {
  double cost[WAKES], latency[WAKES];
  for (int i = 0; i < WAKES; i++) {
    spin(200); // the other core comes to rest
    atomic_store(&o->woken, 0);
    double before = us(CLOCK_MONOTONIC);
    give(o->bell);
    cost[i] = us(CLOCK_MONOTONIC) - before;
    uint64_t at;
    while ((at = atomic_load(&o->woken)) == 0)
      ;
    latency[i] = 1e-3 * (double)at - before;
  }
  printf(", \"wake\": %.1f, \"wake_latency\": %.1f", median(cost, WAKES), median(latency, WAKES));
}

static void turns(struct other *o) {
  double time[PARTS], cpu[PARTS];
  for (int part = 0; part < PARTS; part++) {
    double begin = us(CLOCK_MONOTONIC), spent = us(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < TURNS; i++) {
      give(o->bell);
      take(o->back);
    }
    time[part] = (us(CLOCK_MONOTONIC) - begin) / TURNS;
    cpu[part] = (us(CLOCK_PROCESS_CPUTIME_ID) - spent) / TURNS;
  }
  printf(", \"turn\": %.1f, \"turn_cpu\": %.1f", median(time, PARTS), median(cpu, PARTS));
}

static void loopback(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM, 0), a = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  check(bind(listener, (struct sockaddr *)&address, size) == 0, "bind");
  check(listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&address, &size) == 0, "listen");
  check(connect(a, (struct sockaddr *)&address, size) == 0, "connect");
  int b = accept(listener, NULL, NULL);
  check(b >= 0 && setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0, "accept");
  char packet[64] = {0};
  double begin = us(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < PACKETS; i++) {
    check(write(a, packet, sizeof packet) == sizeof packet, "write");
    check(recv(b, packet, sizeof packet, MSG_WAITALL) == sizeof packet, "recv");
  }
  printf(", \"loopback\": %.1f", (us(CLOCK_THREAD_CPUTIME_ID) - begin) / PACKETS);
  close(a), close(b), close(listener);
}

static void alone(void) {
  double begin = us(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < SYSCALLS; i++) syscall(SYS_getppid);
  printf("{\"syscall\": %.2f", (us(CLOCK_THREAD_CPUTIME_ID) - begin) / SYSCALLS);
  loopback();
  struct timespec brief = {.tv_nsec = 50000};
  begin = us(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < SLEEPS; i++) nanosleep(&brief, NULL);
  printf(", \"sleep\": %.1f", (us(CLOCK_THREAD_CPUTIME_ID) - begin) / SLEEPS);
}

int main(void) {
  int core[2];
  int found = cores(core);
  pin(core[0]);
  alone();
  if (found < 2) {
    puts(", \"wake\": 0, \"wake_latency\": 0, \"turn\": 0, \"turn_cpu\": 0, \"woken\": 0}");
    return 0;
  }
  struct other o = {.core = core[1], .bell = eventfd(0, 0), .back = eventfd(0, 0)};
  pthread_t thread;
  check(o.bell >= 0 && o.back >= 0, "eventfd");
  check(pthread_create(&thread, NULL, other, &o) == 0, "pthread_create");
  take(o.back);
  wakes(&o);
  turns(&o);
  check(pthread_join(thread, NULL) == 0, "pthread_join");
  printf(", \"woken\": %.1f}\n", o.cpu / WAKES);
  return 0;
}
