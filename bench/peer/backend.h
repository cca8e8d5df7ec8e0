// What the backends of this folder call of the interface that libtritonserver.so of tritonserver 2.51 exports (TRITONBACKEND
// API 1.19): the names of `nm -D`, with the parameters that its documentation gives; and what they share.
#pragma once
#define _POSIX_C_SOURCE 200809L
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef struct Error Error; // NULL: success
typedef struct Model Model;
typedef struct Instance Instance;
typedef struct Request Request;
typedef struct Input Input;
typedef struct Response Response;
typedef struct Output Output;

enum { ERROR_INTERNAL = 1, ERROR_UNSUPPORTED = 5 };
enum { RELEASE_ALL = 1, COMPLETE_FINAL = 1 };
enum { MEMORY_CPU = 0, MEMORY_GPU = 2 }; // 1 is pinned, which the processor reads too

Error *TRITONSERVER_ErrorNew(int code, const char *message);
void TRITONSERVER_ErrorDelete(Error *error);
Error *TRITONBACKEND_ModelRepository(Model *model, int *kind, const char **path);
Error *TRITONBACKEND_ModelVersion(Model *model, uint64_t *version);
Error *TRITONBACKEND_ModelInstanceModel(Instance *instance, Model **model);
Error *TRITONBACKEND_ModelInstanceState(Instance *instance, void **state);
Error *TRITONBACKEND_ModelInstanceSetState(Instance *instance, void *state);
Error *TRITONBACKEND_RequestInputByIndex(Request *request, uint32_t index, Input **input);
Error *TRITONBACKEND_RequestOutputCount(Request *request, uint32_t *count);
Error *TRITONBACKEND_RequestOutputName(Request *request, uint32_t index, const char **name);
Error *TRITONBACKEND_RequestRelease(Request *request, uint32_t flags);
Error *TRITONBACKEND_InputProperties(Input *input, const char **name, int *datatype, const int64_t **shape, uint32_t *dims,
                                     uint64_t *bytes, uint32_t *buffers);
Error *TRITONBACKEND_InputBuffer(Input *input, uint32_t index, const void **data, uint64_t *bytes, int *memory, int64_t *device);
Error *TRITONBACKEND_ResponseNew(Response **response, Request *request);
Error *TRITONBACKEND_ResponseOutput(Response *response, Output **output, const char *name, int datatype, const int64_t *shape,
                                    uint32_t dims);
Error *TRITONBACKEND_ResponseSend(Response *response, uint32_t flags, Error *error);
Error *TRITONBACKEND_OutputBuffer(Output *output, void **data, uint64_t bytes, int *memory, int64_t *device);
Error *TRITONBACKEND_ModelInstanceReportStatistics(Instance *instance, Request *request, bool success, uint64_t begin,
                                                   uint64_t computing, uint64_t computed, uint64_t end);
Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(Instance *instance, uint64_t rows, uint64_t begin, uint64_t computing,
                                                        uint64_t computed, uint64_t end);

// What the server calls.
Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance);
Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count);
Error *TRITONBACKEND_ModelInstanceFinalize(Instance *instance);

// now is the clock of the server's own statistics, in ns.
static inline uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// drop ends what can't be told to anybody: the request has its answer by then.
static inline void drop(Error *error) {
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

// copy puts all buffers of the input behind one another into memory that has room for them.
static inline Error *copy(Input *input, uint32_t buffers, char *to, uint64_t room) {
  for (uint32_t i = 0; i < buffers; i++) {
    const void *from = NULL;
    uint64_t bytes = 0;
    int memory = MEMORY_CPU;
    int64_t device = 0;
    Error *error = TRITONBACKEND_InputBuffer(input, i, &from, &bytes, &memory, &device);
    if (error != NULL) return error;
    if (memory == MEMORY_GPU) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "the input lies on a device");
    if (bytes > room) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "the input is longer than it says");
    if (bytes > 0) memcpy(to, from, bytes);
    to += bytes;
    room -= bytes;
  }
  return NULL;
}

// output makes the one output of a response, as the request names it; *to is NULL where the request wants none.
static inline Error *output(Request *request, Response *response, int datatype, const int64_t *shape, uint32_t dims, uint64_t bytes,
                            void **to) {
  Output *made = NULL;
  const char *name = NULL;
  uint32_t wanted = 0;
  int memory = MEMORY_CPU;
  int64_t device = 0;
  *to = NULL;
  Error *error = TRITONBACKEND_RequestOutputCount(request, &wanted);
  if (error != NULL || wanted == 0) return error;
  error = TRITONBACKEND_RequestOutputName(request, 0, &name);
  if (error == NULL) error = TRITONBACKEND_ResponseOutput(response, &made, name, datatype, shape, dims);
  if (error == NULL) error = TRITONBACKEND_OutputBuffer(made, to, bytes, &memory, &device);
  if (error == NULL && memory == MEMORY_GPU) error = TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "the output lies on a device");
  return error;
}
