#ifndef SLUICE_CUDA_SHIM_H
#define SLUICE_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define SL_CUDA_HANDLE 64

typedef struct sl_cuda sl_cuda;

// A failure: the driver's number (0: none, -1: not the driver's) and a text.
typedef struct {
  int code;
  char text[256];
} sl_cuda_error;

// sl_cuda_open loads the driver's library and holds the primary context of a device.
sl_cuda *sl_cuda_open(const char *library, int ordinal, sl_cuda_error *e);
void sl_cuda_close(sl_cuda *c);

// sl_cuda_import maps another process's allocation and tells how many bytes are there.
int sl_cuda_import(sl_cuda *c, const void *handle, uint64_t *at, uint64_t *size, sl_cuda_error *e);
int sl_cuda_drop(sl_cuda *c, uint64_t at, sl_cuda_error *e);

int sl_cuda_read(sl_cuda *c, void *to, uint64_t from, size_t n, sl_cuda_error *e);
int sl_cuda_write(sl_cuda *c, uint64_t to, const void *from, size_t n, sl_cuda_error *e);

// sl_cuda_copy copies within the device, and returns when the copy is there.
int sl_cuda_copy(sl_cuda *c, uint64_t to, uint64_t from, size_t n, sl_cuda_error *e);

// sl_cuda_alloc takes memory of the device.
int sl_cuda_alloc(sl_cuda *c, size_t n, uint64_t *at, sl_cuda_error *e);
int sl_cuda_free(sl_cuda *c, uint64_t at, sl_cuda_error *e);

// sl_cuda_pin makes mapped host memory page-locked; read_only: it is mapped for reading.
int sl_cuda_pin(sl_cuda *c, void *at, size_t n, int read_only, sl_cuda_error *e);
int sl_cuda_unpin(sl_cuda *c, void *at, sl_cuda_error *e);

#endif
