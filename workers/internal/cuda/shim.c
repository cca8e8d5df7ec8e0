//go:build cgo

// The few functions of the CUDA driver that are needed, by dlsym: neither its header nor its
// library has to be there when this is built.
// Source: cuda.h, "CUDA Driver API" (memory management, primary context management).
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char reserved[SL_CUDA_HANDLE];
} ipc_handle;

struct sl_cuda {
  void *library;
  void *context;
  int device;
  int (*error_string)(int, const char **);
  int (*context_retain)(void **, int);
  int (*context_release)(int);
  int (*push)(void *);
  int (*pop)(void **);
  int (*open_handle)(unsigned long long *, ipc_handle, unsigned);
  int (*close_handle)(unsigned long long);
  int (*range)(unsigned long long *, size_t *, unsigned long long);
  int (*to_host)(void *, unsigned long long, size_t);
  int (*to_device)(unsigned long long, const void *, size_t);
  int (*on_device)(unsigned long long, unsigned long long, size_t);
  int (*wait)(void *);
  int (*alloc)(unsigned long long *, size_t);
  int (*release)(unsigned long long);
  int (*pin)(void *, size_t, unsigned);
  int (*unpin)(void *);
};

enum { LAZY_ENABLE_PEER_ACCESS = 1 }; // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
enum { REGISTER_READ_ONLY = 8 };      // CU_MEMHOSTREGISTER_READ_ONLY

static int fail(const sl_cuda *c, const char *what, int code, sl_cuda_error *e) {
  const char *text = NULL;
  if (c->error_string == NULL || c->error_string(code, &text) != 0 || text == NULL) {
    text = "unknown error";
  }
  e->code = code;
  snprintf(e->text, sizeof e->text, "%s: %s (%d)", what, text, code);
  return -1;
}

// find takes the newest name of a function that the library has.
static void *find(sl_cuda *c, const char *newer, const char *older, sl_cuda_error *e) {
  void *f = dlsym(c->library, newer);
  if (f == NULL && older != NULL) {
    f = dlsym(c->library, older);
  }
  if (f == NULL && e->code == 0) {
    e->code = -1;
    snprintf(e->text, sizeof e->text, "the CUDA driver has no %s", newer);
  }
  return f;
}

static int load(sl_cuda *c, int ordinal, sl_cuda_error *e) {
  int (*init)(unsigned) = find(c, "cuInit", NULL, e);
  int (*get)(int *, int) = find(c, "cuDeviceGet", NULL, e);
  c->error_string = find(c, "cuGetErrorString", NULL, e);
  c->context_retain = find(c, "cuDevicePrimaryCtxRetain", NULL, e);
  c->context_release = find(c, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", e);
  c->push = find(c, "cuCtxPushCurrent_v2", "cuCtxPushCurrent", e);
  c->pop = find(c, "cuCtxPopCurrent_v2", "cuCtxPopCurrent", e);
  c->open_handle = find(c, "cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle", e);
  c->close_handle = find(c, "cuIpcCloseMemHandle", NULL, e);
  c->range = find(c, "cuMemGetAddressRange_v2", "cuMemGetAddressRange", e);
  c->to_host = find(c, "cuMemcpyDtoH_v2", "cuMemcpyDtoH", e);
  c->to_device = find(c, "cuMemcpyHtoD_v2", "cuMemcpyHtoD", e);
  c->on_device = find(c, "cuMemcpyDtoD_v2", "cuMemcpyDtoD", e);
  c->wait = find(c, "cuStreamSynchronize", NULL, e);
  c->alloc = find(c, "cuMemAlloc_v2", "cuMemAlloc", e);
  c->release = find(c, "cuMemFree_v2", "cuMemFree", e);
  c->pin = find(c, "cuMemHostRegister_v2", "cuMemHostRegister", e);
  c->unpin = find(c, "cuMemHostUnregister", NULL, e);
  if (e->code != 0) {
    return -1;
  }
  int code = init(0);
  if (code != 0) {
    return fail(c, "cuInit", code, e);
  }
  if ((code = get(&c->device, ordinal)) != 0) {
    return fail(c, "cuDeviceGet", code, e);
  }
  if ((code = c->context_retain(&c->context, c->device)) != 0) {
    return fail(c, "cuDevicePrimaryCtxRetain", code, e);
  }
  return 0;
}

sl_cuda *sl_cuda_open(const char *library, int ordinal, sl_cuda_error *e) {
  e->code = 0;
  sl_cuda *c = calloc(1, sizeof *c);
  if (c == NULL) {
    e->code = -1;
    snprintf(e->text, sizeof e->text, "out of memory");
    return NULL;
  }
  c->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (c->library == NULL) {
    e->code = -1;
    snprintf(e->text, sizeof e->text, "the CUDA driver can't be loaded: %s", dlerror());
    free(c);
    return NULL;
  }
  if (load(c, ordinal, e) != 0) {
    dlclose(c->library);
    free(c);
    return NULL;
  }
  return c;
}

void sl_cuda_close(sl_cuda *c) {
  c->context_release(c->device);
  free(c); // the library stays: the driver has threads
}

static int enter(sl_cuda *c, sl_cuda_error *e) {
  e->code = 0;
  int code = c->push(c->context);
  return code == 0 ? 0 : fail(c, "cuCtxPushCurrent", code, e);
}

static int leave(sl_cuda *c, const char *what, int code, sl_cuda_error *e) {
  void *ours;
  int popped = c->pop(&ours);
  if (code != 0) {
    return fail(c, what, code, e);
  }
  return popped == 0 ? 0 : fail(c, "cuCtxPopCurrent", popped, e);
}

int sl_cuda_import(sl_cuda *c, const void *handle, uint64_t *at, uint64_t *size, sl_cuda_error *e) {
  ipc_handle h;
  memcpy(&h, handle, sizeof h);
  unsigned long long p = 0, base = 0;
  size_t n = 0;
  if (enter(c, e) != 0) {
    return -1;
  }
  int code = c->open_handle(&p, h, LAZY_ENABLE_PEER_ACCESS);
  if (code != 0) {
    return leave(c, "cuIpcOpenMemHandle", code, e);
  }
  if ((code = c->range(&base, &n, p)) != 0) {
    c->close_handle(p);
    return leave(c, "cuMemGetAddressRange", code, e);
  }
  *at = p;
  *size = n - (size_t)(p - base);
  if (leave(c, "", 0, e) != 0) {
    c->close_handle(p);
    return -1;
  }
  return 0;
}

int sl_cuda_drop(sl_cuda *c, uint64_t at, sl_cuda_error *e) {
  if (enter(c, e) != 0) {
    return -1;
  }
  return leave(c, "cuIpcCloseMemHandle", c->close_handle(at), e);
}

int sl_cuda_read(sl_cuda *c, void *to, uint64_t from, size_t n, sl_cuda_error *e) {
  if (enter(c, e) != 0) {
    return -1;
  }
  return leave(c, "cuMemcpyDtoH", c->to_host(to, from, n), e);
}

int sl_cuda_write(sl_cuda *c, uint64_t to, const void *from, size_t n, sl_cuda_error *e) {
  if (enter(c, e) != 0) {
    return -1;
  }
  int code = c->to_device(to, from, n);
  if (code != 0) {
    return leave(c, "cuMemcpyHtoD", code, e);
  }
  // From pageable memory the copy returns before all of it is on the device, and its client
  // reads in another process, which no stream orders.
  // Source: "API synchronization behavior", CUDA Driver API.
  return leave(c, "cuStreamSynchronize", c->wait(NULL), e);
}

int sl_cuda_copy(sl_cuda *c, uint64_t to, uint64_t from, size_t n, sl_cuda_error *e) {
  if (enter(c, e) != 0) {
    return -1;
  }
  int code = c->on_device(to, from, n);
  if (code != 0) {
    return leave(c, "cuMemcpyDtoD", code, e);
  }
  // The host doesn't wait for a copy within the device, and who reads the copy may use
  // another stream.
  // Source: "API synchronization behavior", CUDA Driver API.
  return leave(c, "cuStreamSynchronize", c->wait(NULL), e);
}

int sl_cuda_alloc(sl_cuda *c, size_t n, uint64_t *at, sl_cuda_error *e) {
  unsigned long long p = 0;
  if (enter(c, e) != 0) {
    return -1;
  }
  int code = c->alloc(&p, n);
  if (code != 0) {
    return leave(c, "cuMemAlloc", code, e);
  }
  *at = p;
  if (leave(c, "", 0, e) != 0) {
    c->release(p);
    return -1;
  }
  return 0;
}

int sl_cuda_free(sl_cuda *c, uint64_t at, sl_cuda_error *e) {
  if (enter(c, e) != 0) {
    return -1;
  }
  return leave(c, "cuMemFree", c->release(at), e);
}

int sl_cuda_pin(sl_cuda *c, void *at, size_t n, int read_only, sl_cuda_error *e) {
  if (enter(c, e) != 0) {
    return -1;
  }
  return leave(c, "cuMemHostRegister", c->pin(at, n, read_only ? REGISTER_READ_ONLY : 0), e);
}

int sl_cuda_unpin(sl_cuda *c, void *at, sl_cuda_error *e) {
  if (enter(c, e) != 0) {
    return -1;
  }
  return leave(c, "cuMemHostUnregister", c->unpin(at), e);
}
