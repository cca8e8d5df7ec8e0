//go:build cgo

// The handler of SIGBUS. It uses only what signal handlers may: atomic loads and stores,
// and mmap, which is a system call. The table of mappings is static, since a handler has
// nothing else to look into.
#define _GNU_SOURCE
#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST (1 << 17)

// What an entry is, in the lowest bits of its state. Those above count how often it was
// given up: who reads base and size between two looks at one state has a pair.
enum { FREE, TAKEN, GOOD, BAD, KIND = 3, REUSED = 4 };

static struct {
  _Atomic uintptr_t base;
  _Atomic uintptr_t size;
  _Atomic unsigned state;
} guards[MOST];

static _Atomic int top; // no entry from here on was ever used
static struct sigaction before;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int failed;

// survive puts empty private memory in place of a mapping, from the page of the fault to
// the end: what a truncated file lacks is its end.
static int survive(uintptr_t at) {
  int n = atomic_load(&top);
  for (int i = 0; i < n; i++) {
    unsigned state = atomic_load(&guards[i].state);
    if ((state & KIND) < GOOD) {
      continue;
    }
    uintptr_t base = atomic_load(&guards[i].base), size = atomic_load(&guards[i].size);
    if (at < base || at - base >= size) {
      continue;
    }
    // The entry of the mapping that is touched stays. Another's that is given away right
    // now may have its old size beside its new base.
    if ((atomic_load(&guards[i].state) | KIND) != (state | KIND)) {
      continue;
    }
    // Before there is memory: who reads its zeros finds the region bad afterwards.
    atomic_store(&guards[i].state, (state & ~(unsigned)KIND) | BAD);
    uintptr_t page = at & ~(uintptr_t)4095;
    void *p = mmap((void *)page, base + size - page, PROT_READ | PROT_WRITE,
                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      return 0;
    }
    return 1;
  }
  return 0;
}

static void on_bus(int sig, siginfo_t *info, void *context) {
  int saved = errno;
  int ours = info->si_code == BUS_ADRERR && survive((uintptr_t)info->si_addr);
  errno = saved;
  if (ours) {
    return;
  }
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(sig, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(sig);
  } else {
    signal(sig, SIG_DFL); // the fault comes again and ends the process
  }
}

static void install(void) {
  if (sigaction(SIGBUS, NULL, &before) != 0) {
    failed = errno;
    return;
  }
  struct sigaction ours = {0};
  ours.sa_sigaction = on_bus;
  ours.sa_mask = before.sa_mask;
  // Go's threads take signals on stacks of their own.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  if (!(before.sa_flags & SA_SIGINFO)) {
    sigemptyset(&ours.sa_mask);
  }
  if (sigaction(SIGBUS, &ours, NULL) != 0) {
    failed = errno;
  }
}

int sl_guard_install(void) {
  pthread_once(&once, install);
  return failed;
}

int sl_guard_add(void *base, size_t size) {
  for (int i = 0; i < MOST; i++) {
    unsigned state = atomic_load(&guards[i].state);
    if ((state & KIND) != FREE || !atomic_compare_exchange_strong(&guards[i].state, &state, state | TAKEN)) {
      continue;
    }
    atomic_store(&guards[i].base, (uintptr_t)base);
    atomic_store(&guards[i].size, (size + 4095) & ~(size_t)4095);
    atomic_store(&guards[i].state, state | GOOD);
    int n = atomic_load(&top);
    while (n < i + 1 && !atomic_compare_exchange_weak(&top, &n, i + 1)) {
    }
    return i;
  }
  return -1;
}

int sl_guard_bad(int index) { return (atomic_load(&guards[index].state) & KIND) == BAD; }

void sl_guard_remove(int index) {
  atomic_store(&guards[index].state, (atomic_load(&guards[index].state) & ~(unsigned)KIND) + REUSED);
}
