// A backend for tests. What it does is the model's parameter "mode". It uses nothing but Triton's interface, and Triton
// itself runs it, too.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"

typedef TRITONSERVER_Error Error;
#define EXPORT __attribute__((visibility("default")))
#define TRY(call)                        \
  do {                                   \
    Error *failed_ = (call);             \
    if (failed_ != NULL) return failed_; \
  } while (0)

#ifdef PROBE_THROWS
extern void probe_throw(void);
#endif

typedef struct {
  char mode[64], file[512], calls[128];
  TRITONSERVER_Server *server;
  TRITONSERVER_MetricFamily *family, *sizes;
  TRITONSERVER_Metric *metric, *size;
} Probe;

static void drop(Error *error) {
  if (error != NULL) TRITONSERVER_ErrorDelete(error);
}

// parameter reads a string parameter of a config's JSON.
static void parameter(const char *json, const char *name, char *to, size_t room) {
  char key[128];
  snprintf(key, sizeof key, "\"%s\":{\"string_value\":\"", name);
  const char *at = strstr(json, key);
  to[0] = '\0';
  if (at == NULL) return;
  at += strlen(key);
  size_t n = strcspn(at, "\"");
  if (n >= room) n = room - 1;
  memcpy(to, at, n);
  to[n] = '\0';
}

static Error *note(const char *file, const char *what, TRITONSERVER_Message *message) {
  const char *text;
  size_t size;
  TRY(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  FILE *f = fopen(file, "a");
  if (f == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no file");
  fprintf(f, "%s %.*s\n", what, (int)size, text);
  fclose(f);
  return NULL;
}

static void line(const char *file, const char *text) {
  FILE *f = fopen(file, "a");
  if (f == NULL) return;
  fprintf(f, "%s\n", text);
  fclose(f);
}

EXPORT Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend) {
  uint32_t major = 0, minor = 0;
  TRY(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != 1 || minor < 10) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "triton backend API version does not support this backend");
  (void)backend;
  return NULL;
}

EXPORT Error *TRITONBACKEND_GetBackendAttribute(TRITONBACKEND_Backend *backend, TRITONBACKEND_BackendAttribute *attribute) {
  (void)backend;
  return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attribute, true);
}

static Error *describe(TRITONBACKEND_Model *model, Probe *p) {
  TRITONBACKEND_Backend *backend;
  TRITONSERVER_Message *config;
  const char *path, *name;
  TRITONBACKEND_ArtifactType type;
  uint64_t version;
  char text[2048];
  TRY(TRITONBACKEND_ModelBackend(model, &backend));
  TRY(TRITONBACKEND_BackendConfig(backend, &config));
  TRY(note(p->file, "backend", config));
  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  TRY(note(p->file, "model", config));
  TRITONSERVER_MessageDelete(config);
  TRY(TRITONBACKEND_BackendName(backend, &name));
  TRY(TRITONBACKEND_BackendArtifacts(backend, &type, &path));
  snprintf(text, sizeof text, "artifacts %s %d %s", name, type, strrchr(path, '/'));
  line(p->file, text);
  TRY(TRITONBACKEND_ModelName(model, &name));
  TRY(TRITONBACKEND_ModelVersion(model, &version));
  TRY(TRITONBACKEND_ModelRepository(model, &type, &path));
  snprintf(text, sizeof text, "repository %s %d %d %s", name, (int)version, type, strrchr(path, '/'));
  line(p->file, text);
  return NULL;
}

static Error *complete(TRITONBACKEND_Model *model) {
  static const char said[] =
      "{\"max_batch_size\":4,\"input\":[{\"name\":\"IN\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1]}],"
      "\"output\":[{\"name\":\"OUT\",\"data_type\":\"TYPE_INT32\",\"dims\":[-1]}],\"dynamic_batching\":{}}";
  TRITONSERVER_Message *message;
  TRY(TRITONSERVER_MessageNewFromSerializedJson(&message, said, sizeof said - 1));
  Error *error = TRITONBACKEND_ModelSetConfig(model, 1, message);
  TRITONSERVER_MessageDelete(message);
  if (error != NULL) return error;
  const char *text;
  size_t size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
  TRY(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  if (memmem(text, size, "\"max_batch_size\":4", 18) == NULL) error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "the config was not merged");
  TRITONSERVER_MessageDelete(message);
  return error;
}

EXPORT Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model) {
  TRITONSERVER_Message *config;
  const char *json;
  size_t size;
  TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
  TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
  Probe *p = calloc(1, sizeof *p);
  parameter(json, "mode", p->mode, sizeof p->mode);
  parameter(json, "file", p->file, sizeof p->file);
  parameter(json, "calls", p->calls, sizeof p->calls);
  TRY(TRITONBACKEND_ModelServer(model, &p->server));
  TRITONSERVER_MessageDelete(config);
  TRY(TRITONBACKEND_ModelSetState(model, p));
  bool completing = false;
  TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &completing));
  if (p->file[0] != '\0') TRY(describe(model, p));
  if (strcmp(p->mode, "complete") == 0 && completing) return complete(model);
  if (strcmp(p->mode, "refuse") == 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the model is refused");
  if (strcmp(p->mode, "abort-load") == 0) abort();
  if (strcmp(p->mode, "metrics") == 0 && !completing) {
    TRY(TRITONSERVER_MetricFamilyNew(&p->family, TRITONSERVER_METRIC_KIND_COUNTER, "probe_requests", "Requests of the probe"));
    TRITONSERVER_Parameter *label = TRITONSERVER_ParameterNew("kind", TRITONSERVER_PARAMETER_STRING, "a \"quoted\" one");
    const TRITONSERVER_Parameter *labels[] = {label};
    TRY(TRITONSERVER_MetricNew(&p->metric, p->family, labels, 1));
    TRITONSERVER_ParameterDelete(label);
  }
  return NULL;
}

EXPORT Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model) {
  void *state;
  TRY(TRITONBACKEND_ModelState(model, &state));
  Probe *p = state;
  if (p->metric != NULL) drop(TRITONSERVER_MetricDelete(p->metric));
  if (p->family != NULL) drop(TRITONSERVER_MetricFamilyDelete(p->family));
  free(p);
  return NULL;
}

EXPORT Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance) {
  TRITONBACKEND_Model *model;
  void *state;
  TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
  TRY(TRITONBACKEND_ModelState(model, &state));
  Probe *p = state;
  if (strcmp(p->mode, "refuse-instance") == 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "no instance today");
  if (p->file[0] != '\0') {
    const char *name;
    TRITONSERVER_InstanceGroupKind kind;
    int32_t device;
    TRITONSERVER_Message *policy;
    char text[512];
    TRY(TRITONBACKEND_ModelInstanceName(instance, &name));
    TRY(TRITONBACKEND_ModelInstanceKind(instance, &kind));
    TRY(TRITONBACKEND_ModelInstanceDeviceId(instance, &device));
    TRY(TRITONBACKEND_ModelInstanceHostPolicy(instance, &policy));
    snprintf(text, sizeof text, "instance %s %s %d", name, TRITONSERVER_InstanceGroupKindString(kind), device);
    line(p->file, text);
    TRY(note(p->file, "policy", policy));
  }
  return TRITONBACKEND_ModelInstanceSetState(instance, p);
}

EXPORT Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance) {
  (void)instance;
  return NULL;
}

// echo adds the request's only input to a response, as the output "OUT".
static Error *echo(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response, int more) {
  TRITONBACKEND_Input *input;
  const int64_t *shape;
  TRITONSERVER_DataType datatype;
  uint32_t rank, buffers;
  uint64_t bytes;
  TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &rank, &bytes, &buffers));
  if (bytes >= 4) {
    const void *data;
    uint64_t size;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t device = 0;
    TRY(TRITONBACKEND_InputBuffer(input, 0, &data, &size, &type, &device));
    if (*(const int32_t *)data == -7) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "a value of -7 is refused");
  }
  TRITONBACKEND_Output *output;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", datatype, shape, rank));
  void *to;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  TRY(TRITONBACKEND_OutputBuffer(output, &to, bytes, &type, &device));
  char *at = to;
  for (uint32_t i = 0; i < buffers; i++) {
    const void *data;
    uint64_t size;
    TRY(TRITONBACKEND_InputBuffer(input, i, &data, &size, &type, &device));
    memcpy(at, data, size);
    at += size;
  }
  if (more > 0) memset(at, 1, (size_t)more);
  return NULL;
}

// A call of another model: the model's parameter "calls", with the request's input; its answer is the answer.
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t came;
  bool released, final;
  char error[512], data[65536];
  size_t bytes;
} Call;

static Error *allocate(TRITONSERVER_ResponseAllocator *allocator, const char *name, size_t bytes, TRITONSERVER_MemoryType type,
                       int64_t device, void *with, void **buffer, void **with_buffer, TRITONSERVER_MemoryType *is, int64_t *at) {
  (void)allocator, (void)name, (void)with;
  *buffer = malloc(bytes > 0 ? bytes : 1);
  *with_buffer = NULL;
  *is = type == TRITONSERVER_MEMORY_GPU ? TRITONSERVER_MEMORY_CPU : type;
  *at = device;
  return NULL;
}

static Error *release_buffer(TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *with, size_t bytes,
                             TRITONSERVER_MemoryType type, int64_t device) {
  (void)allocator, (void)with, (void)bytes, (void)type, (void)device;
  free(buffer);
  return NULL;
}

static void released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *with) {
  (void)flags;
  Call *c = with;
  drop(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&c->lock);
  c->released = true;
  pthread_cond_signal(&c->came);
  pthread_mutex_unlock(&c->lock);
}

static void responded(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *with) {
  Call *c = with;
  pthread_mutex_lock(&c->lock);
  if (response != NULL) {
    const char *name;
    TRITONSERVER_DataType datatype;
    const int64_t *shape;
    uint64_t rank;
    const void *data;
    TRITONSERVER_MemoryType type;
    int64_t device;
    void *own;
    size_t bytes = 0;
    Error *error = TRITONSERVER_InferenceResponseError(response);
    if (error == NULL)
      error = TRITONSERVER_InferenceResponseOutput(response, 0, &name, &datatype, &shape, &rank, &data, &bytes, &type, &device, &own);
    if (error != NULL) {
      snprintf(c->error, sizeof c->error, "%s", TRITONSERVER_ErrorMessage(error));
    } else if (bytes <= sizeof c->data) {
      memcpy(c->data, data, bytes);
      c->bytes = bytes;
    }
    drop(error);
    drop(TRITONSERVER_InferenceResponseDelete(response));
  }
  if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) c->final = true;
  pthread_cond_signal(&c->came);
  pthread_mutex_unlock(&c->lock);
}

// ask begins the call. After an error no callback comes.
static Error *ask(Probe *p, TRITONBACKEND_Request *request, TRITONSERVER_ResponseAllocator *allocator, Call *c) {
  TRITONBACKEND_Input *input;
  const int64_t *shape;
  TRITONSERVER_DataType datatype;
  uint32_t rank, buffers;
  uint64_t bytes, size;
  const void *data;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  bool ready = false;
  TRY(TRITONSERVER_ServerModelIsReady(p->server, p->calls, -1, &ready));
  if (!ready) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "the model that is called is not ready");
  TRY(TRITONBACKEND_RequestInput(request, "IN", &input));
  TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &rank, &bytes, &buffers));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &data, &size, &type, &device));
  TRITONSERVER_InferenceRequest *r;
  TRY(TRITONSERVER_InferenceRequestNew(&r, p->server, p->calls, -1));
  TRY(TRITONSERVER_InferenceRequestSetId(r, "called"));
  TRY(TRITONSERVER_InferenceRequestAddInput(r, "IN", datatype, shape, rank));
  TRY(TRITONSERVER_InferenceRequestAppendInputData(r, "IN", data, 4, type, device)); // in two parts
  if (size > 4) TRY(TRITONSERVER_InferenceRequestAppendInputData(r, "IN", (const char *)data + 4, size - 4, type, device));
  TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(r, "OUT"));
  TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(r, released, c));
  TRY(TRITONSERVER_InferenceRequestSetResponseCallback(r, allocator, NULL, responded, c));
  return TRITONSERVER_ServerInferAsync(p->server, r, NULL);
}

// call answers with what another model says.
static Error *call(Probe *p, TRITONBACKEND_Request *request, TRITONBACKEND_Response *response) {
  TRITONSERVER_ResponseAllocator *allocator;
  Call *c = calloc(1, sizeof *c);
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->came, NULL);
  TRY(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
  Error *error = ask(p, request, allocator, c);
  pthread_mutex_lock(&c->lock);
  while (error == NULL && !(c->released && c->final)) pthread_cond_wait(&c->came, &c->lock);
  pthread_mutex_unlock(&c->lock);
  drop(TRITONSERVER_ResponseAllocatorDelete(allocator));
  if (error == NULL && c->error[0] != '\0') error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, c->error);
  if (error == NULL) {
    const int64_t shape[] = {1, (int64_t)(c->bytes / 4)};
    TRITONBACKEND_Output *output;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t device = 0;
    void *to;
    error = TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_INT32, shape, 2);
    if (error == NULL) error = TRITONBACKEND_OutputBuffer(output, &to, c->bytes, &type, &device);
    if (error == NULL) memcpy(to, c->data, c->bytes);
  }
  pthread_mutex_destroy(&c->lock);
  pthread_cond_destroy(&c->came);
  free(c);
  return error;
}

static Error *parameters(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response) {
  uint32_t count;
  TRY(TRITONBACKEND_RequestParameterCount(request, &count));
  for (uint32_t i = 0; i < count; i++) {
    const char *name;
    TRITONSERVER_ParameterType type;
    const void *value;
    TRY(TRITONBACKEND_RequestParameter(request, i, &name, &type, &value));
    switch (type) {
    case TRITONSERVER_PARAMETER_STRING: TRY(TRITONBACKEND_ResponseSetStringParameter(response, name, value)); break;
    case TRITONSERVER_PARAMETER_INT: TRY(TRITONBACKEND_ResponseSetIntParameter(response, name, *(const int64_t *)value)); break;
    case TRITONSERVER_PARAMETER_BOOL: TRY(TRITONBACKEND_ResponseSetBoolParameter(response, name, *(const bool *)value)); break;
    case TRITONSERVER_PARAMETER_DOUBLE: TRY(TRITONBACKEND_ResponseSetDoubleParameter(response, name, *(const double *)value)); break;
    default: return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "a parameter of another type");
    }
  }
  return NULL;
}

// count adds 1 to the state "SUM", and answers with it.
static Error *count(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response) {
  TRITONBACKEND_Input *input;
  const void *data;
  uint64_t size;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  TRY(TRITONBACKEND_RequestInput(request, "SUM_IN", &input));
  TRY(TRITONBACKEND_InputBuffer(input, 0, &data, &size, &type, &device));
  int32_t sum = *(const int32_t *)data + 1;
  const int64_t shape[] = {1};
  TRITONBACKEND_State *state;
  void *to;
  TRY(TRITONBACKEND_StateNew(&state, request, "SUM_OUT", TRITONSERVER_TYPE_INT32, shape, 1));
  TRY(TRITONBACKEND_StateBuffer(state, &to, 4, &type, &device));
  memcpy(to, &sum, 4);
  if (sum < 3) TRY(TRITONBACKEND_StateUpdate(state)); // from 3 on it stays what it was
  TRITONBACKEND_Output *output;
  TRY(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_INT32, shape, 1));
  TRY(TRITONBACKEND_OutputBuffer(output, &to, 4, &type, &device));
  memcpy(to, &sum, 4);
  return NULL;
}

static Error *answer(Probe *p, TRITONBACKEND_Request *request, bool release) {
  TRITONBACKEND_Response *response;
  TRY(TRITONBACKEND_ResponseNew(&response, request));
  Error *error = NULL;
  if (strcmp(p->mode, "count") == 0) {
    error = count(request, response);
  } else if (strcmp(p->mode, "call") == 0) {
    error = call(p, request, response);
  } else {
    error = echo(request, response, strcmp(p->mode, "overrun") == 0 ? 8 : 0);
  }
  if (error == NULL && strcmp(p->mode, "parameters") == 0) error = parameters(request, response);
  drop(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  drop(error);
  if (strcmp(p->mode, "twice") == 0) {
    drop(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
    if (TRITONBACKEND_ResponseNew(&response, request) == NULL)
      drop(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
  }
  if (p->metric != NULL) drop(TRITONSERVER_MetricIncrement(p->metric, 1));
  if (release) drop(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  if (strcmp(p->mode, "twice") == 0) drop(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  return NULL;
}

// stream answers a request as often as its input says, and then ends it; without a gap, or with one between answers.
static void stream(Probe *p, TRITONBACKEND_Request *request) {
  TRITONBACKEND_ResponseFactory *factory;
  TRITONBACKEND_Input *input;
  const void *data;
  uint64_t size;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
  drop(TRITONBACKEND_ResponseFactoryNew(&factory, request));
  drop(TRITONBACKEND_RequestInput(request, "IN", &input));
  drop(TRITONBACKEND_InputBuffer(input, 0, &data, &size, &type, &device));
  int32_t n = *(const int32_t *)data;
  drop(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
  const int64_t shape[] = {1};
  for (int32_t i = 0; i < n; i++) {
    TRITONBACKEND_Response *response;
    TRITONBACKEND_Output *output;
    void *to;
    bool cancelled = false;
    if (i == 1 && strcmp(p->mode, "crash-stream") == 0) abort();
    drop(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &cancelled));
    if (cancelled) break;
    drop(TRITONBACKEND_ResponseNewFromFactory(&response, factory));
    drop(TRITONBACKEND_ResponseOutput(response, &output, "OUT", TRITONSERVER_TYPE_INT32, shape, 1));
    drop(TRITONBACKEND_OutputBuffer(output, &to, 4, &type, &device));
    memcpy(to, &i, 4);
    drop(TRITONBACKEND_ResponseSend(response, 0, NULL));
    if (strcmp(p->mode, "slow-stream") == 0) usleep(10000);
  }
  drop(TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL));
  drop(TRITONBACKEND_ResponseFactoryDelete(factory));
}

typedef struct {
  Probe *probe;
  TRITONBACKEND_Request *request;
} Later;

static void *later(void *argument) {
  Later *l = argument;
  usleep(20000);
  drop(answer(l->probe, l->request, true));
  free(l);
  return NULL;
}

static void hang(void) {
  for (;;) pause();
}

EXPORT Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests,
                                                 const uint32_t count) {
  void *state;
  TRY(TRITONBACKEND_ModelInstanceState(instance, &state));
  Probe *p = state;
  if (strcmp(p->mode, "abort") == 0) abort();
  if (strcmp(p->mode, "segv") == 0) *(volatile int *)8 = 1;
  if (strcmp(p->mode, "hang") == 0) hang();
#ifdef PROBE_THROWS
  if (strcmp(p->mode, "throw") == 0) probe_throw();
#endif
  if (strcmp(p->mode, "fail") == 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "not now");
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(p->mode, "silent") == 0) {
      drop(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    } else if (strstr(p->mode, "stream") != NULL) {
      stream(p, requests[i]);
    } else if (strcmp(p->mode, "later") == 0) {
      Later *l = malloc(sizeof *l);
      pthread_t thread;
      *l = (Later){p, requests[i]};
      pthread_create(&thread, NULL, later, l);
      pthread_detach(thread);
    } else {
      drop(answer(p, requests[i], true));
    }
  }
  return NULL;
}
