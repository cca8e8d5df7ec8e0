// A backend of the original that runs 1/model.onnx of a model with one input and one output of FP32, batch first, in ONNX
// Runtime, the library that our worker loads, with as many threads of its own as that has: none. A batch is gathered, run
// once and divided, with one copy each way, and none on the way in for a request that is alone and in one piece: what a
// server in one process, with nothing of a framework, needs at the least. Built and laid down like identity.c.
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "onnxruntime_c_api.h"

enum { MOST = 64 }; // requests of a batch, no fewer than any max_batch_size it is measured with
enum { FP32 = 11 }; // the original's number for it

// Network is the state of an instance.
typedef struct {
  const OrtApi *ort;
  OrtEnv *env;
  OrtSession *session;
  OrtMemoryInfo *memory;
  char *input, *output;
  char *batch; // where a batch is gathered
  uint64_t room;
} Network;

// failed makes the server's error of the library's.
static Error *failed(const Network *n, OrtStatus *status) {
  if (status == NULL) return NULL;
  Error *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, n->ort->GetErrorMessage(status));
  n->ort->ReleaseStatus(status);
  return error;
}

static OrtStatus *open_session(Network *n, const char *path) {
  const OrtApi *ort = n->ort;
  OrtSessionOptions *options = NULL;
  OrtAllocator *allocator = NULL;
  OrtStatus *status = ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "network", &n->env);
  if (status == NULL) status = ort->CreateSessionOptions(&options);
  if (status == NULL) status = ort->SetIntraOpNumThreads(options, 1);
  if (status == NULL) status = ort->SetInterOpNumThreads(options, 1);
  if (status == NULL) status = ort->CreateSession(n->env, path, options, &n->session);
  if (options != NULL) ort->ReleaseSessionOptions(options);
  if (status == NULL) status = ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &n->memory);
  if (status == NULL) status = ort->GetAllocatorWithDefaultOptions(&allocator);
  if (status == NULL) status = ort->SessionGetInputName(n->session, 0, allocator, &n->input);
  if (status == NULL) status = ort->SessionGetOutputName(n->session, 0, allocator, &n->output);
  return status;
}

// TRITONBACKEND_ModelInstanceInitialize opens the model's file. What it made stays where it fails: the server then ends.
Error *TRITONBACKEND_ModelInstanceInitialize(Instance *instance) {
  Model *model = NULL;
  const char *folder = NULL;
  uint64_t version = 0;
  int kind = 0;
  char path[4096];
  Error *error = TRITONBACKEND_ModelInstanceModel(instance, &model);
  if (error == NULL) error = TRITONBACKEND_ModelRepository(model, &kind, &folder);
  if (error == NULL) error = TRITONBACKEND_ModelVersion(model, &version);
  if (error != NULL) return error;
  snprintf(path, sizeof path, "%s/%llu/model.onnx", folder, (unsigned long long)version);
  Network *n = calloc(1, sizeof *n);
  if (n == NULL) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "no memory");
  n->ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  if (n->ort == NULL) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "the library is older than its header");
  error = failed(n, open_session(n, path));
  return error != NULL ? error : TRITONBACKEND_ModelInstanceSetState(instance, n);
}

Error *TRITONBACKEND_ModelInstanceFinalize(Instance *instance) {
  void *state = NULL;
  Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
  Network *n = state;
  if (error != NULL || n == NULL) return error;
  n->ort->ReleaseMemoryInfo(n->memory);
  n->ort->ReleaseSession(n->session);
  n->ort->ReleaseEnv(n->env);
  free(n->batch);
  free(n); // the names are the library's, and end with the process
  return NULL;
}

// A part is one request of a batch.
typedef struct {
  Response *response;
  Input *input;
  uint64_t rows, bytes;
  uint32_t buffers;
} Part;

// describe reads what the requests bring. All have the width of the first, as the server has checked against the config.
static Error *describe(Request **requests, Part *parts, uint32_t count, int64_t whole[2]) {
  whole[0] = 0;
  for (uint32_t i = 0; i < count; i++) {
    const int64_t *shape = NULL;
    uint32_t dims = 0;
    int datatype = 0;
    Part *p = &parts[i];
    Error *error = TRITONBACKEND_RequestInputByIndex(requests[i], 0, &p->input);
    if (error == NULL) error = TRITONBACKEND_InputProperties(p->input, NULL, &datatype, &shape, &dims, &p->bytes, &p->buffers);
    if (error != NULL) return error;
    if (dims != 2 || datatype != FP32) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "want FP32 of two dimensions");
    p->rows = (uint64_t)shape[0];
    whole[0] += shape[0];
    whole[1] = shape[1];
  }
  return NULL;
}

// gather brings the inputs into one piece, which *at then shows.
static Error *gather(Network *n, Part *parts, uint32_t count, uint64_t bytes, const void **at) {
  if (count == 1 && parts[0].buffers == 1) {
    uint64_t length = 0;
    int memory = MEMORY_CPU;
    int64_t device = 0;
    Error *error = TRITONBACKEND_InputBuffer(parts[0].input, 0, at, &length, &memory, &device);
    if (error != NULL || (memory != MEMORY_GPU && length == bytes)) return error;
    return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "the input lies on a device, or is not of its length");
  }
  if (n->room < bytes) {
    free(n->batch);
    n->batch = malloc(bytes);
    n->room = n->batch == NULL ? 0 : bytes;
    if (n->batch == NULL) return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "no memory");
  }
  char *to = n->batch;
  for (uint32_t i = 0; i < count; i++) {
    Error *error = copy(parts[i].input, parts[i].buffers, to, bytes - (uint64_t)(to - n->batch));
    if (error != NULL) return error;
    to += parts[i].bytes;
  }
  *at = n->batch;
  return NULL;
}

// infer runs the batch; result is the caller's, and data shows into it, wide elements to a row.
static Error *infer(Network *n, const void *at, const int64_t shape[2], OrtValue **result, float **data, uint64_t *wide) {
  const OrtApi *ort = n->ort;
  OrtValue *input = NULL;
  OrtTensorTypeAndShapeInfo *info = NULL;
  size_t elements = 0;
  OrtStatus *status = ort->CreateTensorWithDataAsOrtValue(n->memory, (void *)at, (size_t)(4 * shape[0] * shape[1]), shape, 2,
                                                          ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &input);
  if (status == NULL) {
    status = ort->Run(n->session, NULL, (const char *const *)&n->input, (const OrtValue *const *)&input, 1,
                      (const char *const *)&n->output, 1, result);
    ort->ReleaseValue(input);
  }
  if (status == NULL) status = ort->GetTensorTypeAndShape(*result, &info);
  if (status == NULL) {
    status = ort->GetTensorShapeElementCount(info, &elements);
    ort->ReleaseTensorTypeAndShapeInfo(info);
  }
  if (status == NULL) status = ort->GetTensorMutableData(*result, (void **)data);
  *wide = elements / (uint64_t)shape[0];
  return failed(n, status);
}

// execute answers all requests but for sending; the error is of all of them.
static Error *execute(Network *n, Request **requests, Part *parts, uint32_t count, uint64_t times[2]) {
  int64_t shape[2] = {0, 0};
  const void *at = NULL;
  OrtValue *result = NULL;
  float *data = NULL;
  uint64_t wide = 0;
  Error *error = describe(requests, parts, count, shape);
  if (error == NULL) error = gather(n, parts, count, (uint64_t)(4 * shape[0] * shape[1]), &at);
  times[0] = now();
  if (error == NULL) error = infer(n, at, shape, &result, &data, &wide);
  times[1] = now();
  for (uint32_t i = 0; i < count && error == NULL; i++) {
    int64_t own[2] = {(int64_t)parts[i].rows, (int64_t)wide};
    uint64_t bytes = 4 * parts[i].rows * wide;
    void *to = NULL;
    error = output(requests[i], parts[i].response, FP32, own, 2, bytes, &to);
    if (error == NULL && to != NULL) memcpy(to, data, bytes);
    data += parts[i].rows * wide;
  }
  if (result != NULL) n->ort->ReleaseValue(result);
  return error;
}

// TRITONBACKEND_ModelInstanceExecute answers and releases every request of a batch.
Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, uint32_t count) {
  uint64_t begin = now(), times[2] = {begin, begin}, rows = 0;
  void *state = NULL;
  Part parts[MOST] = {{0}};
  if (count > MOST) return TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, "more requests than this backend takes");
  Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
  for (uint32_t i = 0; i < count && error == NULL; i++) error = TRITONBACKEND_ResponseNew(&parts[i].response, requests[i]);
  if (error == NULL) error = execute(state, requests, parts, count, times);
  uint64_t end = now();
  for (uint32_t i = 0; i < count; i++) {
    if (parts[i].response != NULL) drop(TRITONBACKEND_ResponseSend(parts[i].response, COMPLETE_FINAL, error));
    drop(TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], error == NULL, begin, times[0], times[1], end));
    drop(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
    rows += parts[i].rows;
  }
  drop(error);
  drop(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, begin, times[0], times[1], end));
  return NULL;
}
