// A CUDA driver on plain memory, for tests without a GPU: a handle holds the path of a file,
// which stands for the memory of its exporter. It checks what a driver would: that there is
// a context, and that handles and pointers are its own. Device pointers are no addresses of
// this process, so that whoever reads device memory as if it were the host's faults.
// Beside the library lies the file "control": see Control in cudatest.go.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
  char path[64];
} handle;

// The numbers of the control file, in its order.
typedef struct {
  int64_t to_device, to_host, on_device; // copies
  int64_t allocations, bytes;            // that are not given back
  int64_t pinned;                        // ranges that are registered
  int64_t capacity;                      // bytes that can be allocated; 0: any
  int64_t fail_copy;                     // the error of copies; 0: none
  int64_t fail_pin;                      // the error of registering; 0: none
  int64_t fail_alloc;                    // the error of allocations; 0: none
} control;

static control none, *shared = &none;

enum { SLOTS = 4096, IMPORTS = 64 }; // of all memory, and of other processes'

static __thread void *stack[8];
static __thread int depth;
static int retained;
static char context;
static int lock;
static struct {
  char *at;                // where it really is; NULL: the slot is free
  unsigned long long base; // what a device pointer to it is
  size_t size;
  int imported;
} opened[SLOTS];

static void enter(void) {
  while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) usleep(10);
}
static void leave(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }
static void add(int64_t *n, int64_t by) { __atomic_add_fetch(n, by, __ATOMIC_RELAXED); }
static int64_t get(int64_t *n) { return __atomic_load_n(n, __ATOMIC_RELAXED); }

static void find_control(void) {
  Dl_info info;
  char path[4096];
  if (dladdr((void *)find_control, &info) == 0 || info.dli_fname == NULL) return;
  const char *end = strrchr(info.dli_fname, '/');
  if (end == NULL) return;
  snprintf(path, sizeof path, "%.*s/control", (int)(end - info.dli_fname), info.dli_fname);
  int fd = open(path, O_RDWR);
  if (fd < 0) return;
  void *p = mmap(NULL, sizeof(control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p != MAP_FAILED) shared = p;
}

int cuInit(unsigned flags) {
  find_control();
  return flags == 0 ? 0 : 1;
}
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal + 40;
  return ordinal == 0 ? 0 : 101;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == 101 ? "invalid device ordinal" : code == 201 ? "invalid device context" : code == 400 ? "invalid resource handle" : code == 2 ? "out of memory" : code == 700 ? "an illegal memory access was encountered" : code == 801 ? "operation not supported" : NULL;
  return *text == NULL;
}
int cuDevicePrimaryCtxRetain(void **c, int device) {
  *c = &context;
  retained++;
  return device == 40 ? 0 : 101;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  retained--;
  return device == 40 ? 0 : 101;
}
int cuCtxPushCurrent_v2(void *c) {
  if (c != &context || retained <= 0 || depth == 8) return 201;
  stack[depth++] = c;
  return 0;
}
int cuCtxPopCurrent_v2(void **c) {
  if (depth == 0) return 201;
  *c = stack[--depth];
  return 0;
}
// take puts memory into a slot, at an address that no process has.
static int take(char *at, size_t size, int imported, unsigned long long *base) {
  int found = -1, imports = 0;
  enter();
  for (int i = 0; i < SLOTS; i++) {
    if (opened[i].at == NULL && found < 0) found = i;
    imports += opened[i].at != NULL && opened[i].imported;
  }
  if (imported && imports == IMPORTS) found = -1;
  if (found >= 0) {
    opened[found].at = at;
    opened[found].size = size;
    opened[found].imported = imported;
    *base = opened[found].base = (0x8000ull << 48) + ((unsigned long long)(found + 1) << 40);
  }
  leave();
  return found < 0 ? 2 : 0;
}
int cuIpcOpenMemHandle_v2(unsigned long long *at, handle h, unsigned flags) {
  if (depth == 0 || flags != 1) return 201;
  if (strncmp(h.path, "self", 4) == 0) return 201;
  if (strncmp(h.path, "full", 4) == 0) return 2;
  int fd = open(h.path, O_RDWR);
  struct stat st;
  if (fd < 0) return 400;
  if (fstat(fd, &st) != 0) {
    close(fd);
    return 400;
  }
  char *p = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) return 400;
  int code = take(p, st.st_size, 1, at);
  if (code != 0) munmap(p, st.st_size);
  return code;
}
// find is the slot in which n bytes at a device pointer lie.
static int find(unsigned long long at, size_t n) {
  for (int i = 0; i < SLOTS; i++) {
    if (opened[i].at != NULL && at >= opened[i].base && n <= opened[i].size && at - opened[i].base <= opened[i].size - n) return i;
  }
  return -1;
}
// real is where n bytes at a device pointer are; NULL: nowhere.
static char *real(unsigned long long at, size_t n) {
  enter();
  int i = find(at, n);
  char *p = i < 0 ? NULL : opened[i].at + (at - opened[i].base);
  leave();
  return p;
}
static int drop(unsigned long long at, int imported) {
  enter();
  int i = find(at, 0);
  int ok = i >= 0 && depth > 0 && opened[i].imported == imported && opened[i].base == at;
  if (ok) {
    munmap(opened[i].at, opened[i].size);
    opened[i].at = NULL;
    if (!imported) {
      add(&shared->allocations, -1);
      add(&shared->bytes, -(int64_t)opened[i].size);
    }
  }
  leave();
  return ok ? 0 : 400;
}
int cuIpcCloseMemHandle(unsigned long long at) { return drop(at, 1); }
int cuMemFree_v2(unsigned long long at) { return drop(at, 0); }
int cuMemAlloc_v2(unsigned long long *at, size_t n) {
  if (depth == 0) return 201;
  if (n == 0) return 1;
  if (get(&shared->fail_alloc) != 0) return get(&shared->fail_alloc);
  if (get(&shared->capacity) > 0 && get(&shared->bytes) + (int64_t)n > get(&shared->capacity)) return 2;
  char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return 2;
  int code = take(p, n, 0, at);
  if (code != 0) {
    munmap(p, n);
    return code;
  }
  add(&shared->allocations, 1);
  add(&shared->bytes, n);
  return 0;
}
int cuMemHostRegister_v2(void *at, size_t n, unsigned flags) {
  if (depth == 0) return 201;
  if (at == NULL || n == 0 || (flags != 0 && flags != 8)) return 1;
  if (get(&shared->fail_pin) != 0) return get(&shared->fail_pin);
  add(&shared->pinned, 1);
  return 0;
}
int cuMemHostUnregister(void *at) {
  if (depth == 0 || at == NULL) return 201;
  add(&shared->pinned, -1);
  return 0;
}
int cuMemGetAddressRange_v2(unsigned long long *base, size_t *n, unsigned long long at) {
  enter();
  int i = find(at, 0);
  if (i >= 0) {
    *base = opened[i].base;
    *n = opened[i].size;
  }
  leave();
  return i < 0 ? 400 : 0;
}
// What is copied to the device from ordinary memory, or within the device, is on its way when
// the copy returns, and there after the stream was waited for, or used again.
static __thread struct {
  unsigned long long to;
  char *data;
  size_t n;
} moving;
static void arrive(void) {
  if (moving.data == NULL) return;
  char *to = real(moving.to, moving.n);
  if (to != NULL) memcpy(to, moving.data, moving.n);
  free(moving.data);
  moving.data = NULL;
}
static int move(unsigned long long to, const char *from, size_t n) {
  arrive();
  moving.data = malloc(n);
  if (moving.data == NULL) return 2;
  memcpy(moving.data, from, n);
  moving.to = to;
  moving.n = n;
  return 0;
}
int cuStreamSynchronize(void *stream) {
  if (depth == 0 || stream != NULL) return 400;
  arrive();
  return 0;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t n) {
  char *p = real(from, n);
  if (depth == 0 || p == NULL) return 1;
  if (get(&shared->fail_copy) != 0) return get(&shared->fail_copy);
  arrive();
  memcpy(to, p, n);
  add(&shared->to_host, 1);
  return 0;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t n) {
  if (depth == 0 || real(to, n) == NULL) return 1;
  if (get(&shared->fail_copy) != 0) return get(&shared->fail_copy);
  add(&shared->to_device, 1);
  return move(to, from, n);
}
int cuMemcpyDtoD_v2(unsigned long long to, unsigned long long from, size_t n) {
  char *p = real(from, n);
  if (depth == 0 || p == NULL || real(to, n) == NULL) return 1;
  if (get(&shared->fail_copy) != 0) return get(&shared->fail_copy);
  arrive();
  add(&shared->on_device, 1);
  return move(to, p, n);
}
