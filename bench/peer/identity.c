// A backend of the original whose models answer with what they were sent: what the original's own path costs, with nothing
// of a framework or of another process in it. It has one input and one output of a like shape and datatype; a batch is
// answered request by request, each with one copy. scripts/peer.sh builds it for tritonserver 2.51 and lays it beside the
// Python backend; bench/transports.py --original measures it.
//
// Declared below is what it calls of the interface that libtritonserver.so exports (TRITONBACKEND API 1.19): the names of
// `nm -D`, with the parameters that its documentation gives.
#define _POSIX_C_SOURCE 200809L
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef struct Error Error; // NULL: success
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

Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count);

// now is the clock of the server's own statistics, in ns.
static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

// drop ends what can't be told to anybody: the request has its answer by then.
static void drop(Error *error) {
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

// copy puts all buffers of the input behind one another into the output, which has as many bytes.
static Error *copy(Input *input, uint32_t buffers, char *to, uint64_t room) {
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

// answer writes the output of one request; rows is its batch dimension.
static Error *answer(Request *request, Response *response, uint64_t *rows) {
  Input *input = NULL;
  Output *output = NULL;
  const char *name = NULL;
  const int64_t *shape = NULL;
  uint32_t dims = 0, buffers = 0, wanted = 0;
  uint64_t bytes = 0;
  int datatype = 0, memory = MEMORY_CPU;
  int64_t device = 0;
  void *to = NULL;
  Error *error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
  if (error == NULL) error = TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &bytes, &buffers);
  if (error == NULL) error = TRITONBACKEND_RequestOutputCount(request, &wanted);
  if (error != NULL) return error;
  *rows = dims > 0 ? (uint64_t)shape[0] : 1;
  if (wanted == 0) return NULL;
  error = TRITONBACKEND_RequestOutputName(request, 0, &name);
  if (error == NULL) error = TRITONBACKEND_ResponseOutput(response, &output, name, datatype, shape, dims);
  if (error == NULL) error = TRITONBACKEND_OutputBuffer(output, &to, bytes, &memory, &device);
  if (error != NULL) return error;
  if (memory == MEMORY_GPU) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "the output lies on a device");
  return copy(input, buffers, to, bytes);
}

// TRITONBACKEND_ModelInstanceExecute answers and releases every request of a batch; the server calls it, for one instance
// from one thread at a time. Of each request is reported when the batch began and the time of its own copy.
Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
  uint64_t begin = now(), at = begin, sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    Response *response = NULL;
    uint64_t rows = 1;
    Error *error = TRITONBACKEND_ResponseNew(&response, requests[i]);
    if (error == NULL) error = answer(requests[i], response, &rows);
    uint64_t copied = now();
    bool good = error == NULL;
    if (response != NULL) drop(TRITONBACKEND_ResponseSend(response, COMPLETE_FINAL, error));
    drop(error);
    drop(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], good, begin, at, copied, copied));
    drop(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
    at = copied;
    sum += rows;
  }
  drop(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, sum, begin, begin, at, at));
  return NULL;
}
