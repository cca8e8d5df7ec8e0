// A CUDA driver on plain memory, for tests without a GPU: a handle holds the path of a file,
// which stands for the memory of its exporter. It checks what a driver would: that there is
// a context, and that handles and pointers are its own.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
  char path[64];
} handle;

static __thread void *stack[8];
static __thread int depth;
static int retained;
static char context;
static struct {
  char *at;
  size_t size;
} opened[64];

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal + 40;
  return ordinal == 0 ? 0 : 101;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == 101 ? "invalid device ordinal" : code == 201 ? "invalid device context" : code == 400 ? "invalid resource handle" : code == 2 ? "out of memory" : NULL;
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
int cuIpcOpenMemHandle_v2(unsigned long long *at, handle h, unsigned flags) {
  if (depth == 0 || flags != 1) return 201;
  if (strncmp(h.path, "self", 4) == 0) return 201;
  if (strncmp(h.path, "full", 4) == 0) return 2;
  int fd = open(h.path, O_RDWR);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) return 400;
  for (int i = 0; i < 64; i++) {
    if (opened[i].at != NULL) continue;
    opened[i].at = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    opened[i].size = st.st_size;
    close(fd);
    *at = (unsigned long long)opened[i].at;
    return 0;
  }
  close(fd);
  return 2;
}
static int find(unsigned long long at, size_t n) {
  for (int i = 0; i < 64; i++) {
    char *p = opened[i].at;
    if (p != NULL && (char *)at >= p && n <= opened[i].size && (size_t)((char *)at - p) <= opened[i].size - n) return i;
  }
  return -1;
}
int cuIpcCloseMemHandle(unsigned long long at) {
  int i = find(at, 0);
  if (i < 0 || depth == 0) return 400;
  munmap(opened[i].at, opened[i].size);
  opened[i].at = NULL;
  return 0;
}
int cuMemGetAddressRange_v2(unsigned long long *base, size_t *n, unsigned long long at) {
  int i = find(at, 0);
  if (i < 0) return 400;
  *base = (unsigned long long)opened[i].at;
  *n = opened[i].size;
  return 0;
}
// What is copied to the device from ordinary memory is on its way when the copy returns, and
// there after the stream was waited for, or used again.
static __thread struct {
  char *to, *data;
  size_t n;
} moving;
static void arrive(void) {
  if (moving.data == NULL) return;
  if (find((unsigned long long)moving.to, moving.n) >= 0) memcpy(moving.to, moving.data, moving.n);
  free(moving.data);
  moving.data = NULL;
}
int cuStreamSynchronize(void *stream) {
  if (depth == 0 || stream != NULL) return 400;
  arrive();
  return 0;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t n) {
  if (depth == 0 || find(from, n) < 0) return 1;
  arrive();
  memcpy(to, (void *)from, n);
  return 0;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t n) {
  if (depth == 0 || find(to, n) < 0) return 1;
  arrive();
  moving.data = malloc(n);
  if (moving.data == NULL) return 2;
  memcpy(moving.data, from, n);
  moving.to = (char *)to;
  moving.n = n;
  return 0;
}
