// What backends ask of the server: inferences of other models, and their loading. A call waits in a list for the worker,
// which makes it through the gateway, in the name of the model that calls, and answers on threads of its own.
#include "private.h"

struct TRITONSERVER_ResponseAllocator {
  TRITONSERVER_ResponseAllocatorAllocFn_t alloc;
  TRITONSERVER_ResponseAllocatorReleaseFn_t release;
  TRITONSERVER_ResponseAllocatorStartFn_t start;
};

struct TRITONSERVER_InferenceRequest {
  th_call said;
  TRITONSERVER_InferenceRequest *next; // in the list of calls
  chunk *memory;
  uint32_t input_room, output_room, parameter_room;
  TRITONSERVER_InferenceRequestReleaseFn_t release;
  void *release_with;
  TRITONSERVER_ResponseAllocator *allocator;
  TRITONSERVER_InferenceResponseCompleteFn_t respond;
  void *allocate_with, *respond_with;
  bool cancelled; // atomic

  // Of calls that wait for their end.
  bool ended, yes;
  Error *error;
};
typedef TRITONSERVER_InferenceRequest Request;

typedef struct {
  th_output said;
  void *with;
  TRITONSERVER_MemoryType type;
  int64_t device;
} placed;

struct TRITONSERVER_InferenceResponse {
  chunk *memory;
  TRITONSERVER_ResponseAllocator *allocator;
  Error *error;
  placed *outputs;
  th_parameter *parameters;
  uint32_t output_count, parameter_count;
};
typedef TRITONSERVER_InferenceResponse Response;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;
static Request *first, **last = &first; // guarded by lock

static void push(Request *r) {
  pthread_mutex_lock(&lock);
  r->next = NULL;
  *last = r;
  last = &r->next;
  pthread_cond_signal(&came);
  pthread_mutex_unlock(&lock);
}

th_call *call_wait(void) {
  pthread_mutex_lock(&lock);
  while (first == NULL) pthread_cond_wait(&came, &lock);
  Request *r = first;
  first = r->next;
  if (first == NULL) last = &first;
  pthread_mutex_unlock(&lock);
  return &r->said;
}

bool call_cancelled(th_call *call) { return __atomic_load_n(&((Request *)call)->cancelled, __ATOMIC_RELAXED); }

Error *TRITONSERVER_ResponseAllocatorNew(TRITONSERVER_ResponseAllocator **allocator,
                                         TRITONSERVER_ResponseAllocatorAllocFn_t alloc,
                                         TRITONSERVER_ResponseAllocatorReleaseFn_t release,
                                         TRITONSERVER_ResponseAllocatorStartFn_t start) {
  TRITONSERVER_ResponseAllocator *a = grown(sizeof *a);
  a->alloc = alloc;
  a->release = release;
  a->start = start;
  *allocator = a;
  return NULL;
}

// Where an output will lie is asked of allocators only where that may be elsewhere than in the CPU's memory.
Error *TRITONSERVER_ResponseAllocatorSetQueryFunction(TRITONSERVER_ResponseAllocator *a,
                                                      TRITONSERVER_ResponseAllocatorQueryFn_t query) {
  (void)a, (void)query;
  return NULL;
}

Error *TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator *a) {
  free(a);
  return NULL;
}

Error *TRITONSERVER_InferenceRequestNew(Request **request, TRITONSERVER_Server *server, const char *model,
                                        const int64_t version) {
  Request *r = grown(sizeof *r);
  r->said.kind = TH_INFER;
  r->said.owner = server->owner;
  r->said.model = take_text(&r->memory, model, strlen(model));
  r->said.version = version;
  r->said.id = r->said.correlation_text = "";
  *request = r;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestDelete(Request *r) {
  if (r == NULL) return NULL;
  give_back(r->memory);
  free(r);
  return NULL;
}

static const char *kept(Request *r, const char *text) { return take_text(&r->memory, text, strlen(text)); }

Error *TRITONSERVER_InferenceRequestSetId(Request *r, const char *id) {
  r->said.id = kept(r, id);
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetFlags(Request *r, uint32_t flags) {
  r->said.flags = flags;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetCorrelationId(Request *r, uint64_t id) {
  r->said.correlation = id;
  r->said.correlation_text = "";
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetCorrelationIdString(Request *r, const char *id) {
  r->said.correlation = 0;
  r->said.correlation_text = kept(r, id);
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetPriority(Request *r, uint32_t priority) {
  r->said.priority = priority;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetPriorityUInt64(Request *r, uint64_t priority) {
  r->said.priority = priority;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(Request *r, uint64_t timeout) {
  r->said.timeout_us = timeout;
  return NULL;
}

// more makes room for one more element of an array.
static void *more(Request *r, const void *array, uint32_t count, uint32_t *capacity, size_t size) {
  if (count < *capacity) return (void *)array;
  *capacity = *capacity == 0 ? 4 : 2 * *capacity;
  void *all = take(&r->memory, *capacity * size);
  if (count > 0) memcpy(all, array, count * size);
  return all;
}

Error *TRITONSERVER_InferenceRequestAddInput(Request *r, const char *name, const TRITONSERVER_DataType datatype,
                                             const int64_t *shape, uint64_t rank) {
  r->said.inputs = more(r, r->said.inputs, r->said.input_count, &r->input_room, sizeof *r->said.inputs);
  th_input *in = (th_input *)&r->said.inputs[r->said.input_count++];
  memset(in, 0, sizeof *in);
  in->name = kept(r, name);
  in->datatype = datatype;
  in->rank = (uint32_t)rank;
  int64_t *own = take(&r->memory, rank * sizeof *own);
  if (rank > 0) memcpy(own, shape, rank * sizeof *own);
  in->shape = own;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestAppendInputData(Request *r, const char *name, const void *data, size_t bytes,
                                                    TRITONSERVER_MemoryType type, int64_t device) {
  (void)device;
  if (type == TRITONSERVER_MEMORY_GPU)
    return errorf(TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' of a call lies in a GPU's memory, which is not supported", name);
  for (uint32_t i = 0; i < r->said.input_count; i++) {
    th_input *in = (th_input *)&r->said.inputs[i];
    if (strcmp(in->name, name) != 0) continue;
    if (in->bytes == 0) { // the caller keeps it until the request is released
      in->data = data;
      in->bytes = bytes;
      return NULL;
    }
    char *all = take(&r->memory, in->bytes + bytes);
    memcpy(all, in->data, in->bytes);
    if (bytes > 0) memcpy(all + in->bytes, data, bytes);
    in->data = all;
    in->bytes += bytes;
    return NULL;
  }
  return errorf(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' does not exist in request", name);
}

Error *TRITONSERVER_InferenceRequestAddRequestedOutput(Request *r, const char *name) {
  r->said.outputs = more(r, r->said.outputs, r->said.output_count, &r->output_room, sizeof *r->said.outputs);
  ((const char **)r->said.outputs)[r->said.output_count++] = kept(r, name);
  return NULL;
}

static Error *parameter(Request *r, th_parameter said) {
  r->said.parameters = more(r, r->said.parameters, r->said.parameter_count, &r->parameter_room, sizeof *r->said.parameters);
  said.name = kept(r, said.name);
  if (said.text != NULL) said.text = take_text(&r->memory, said.text, said.size);
  ((th_parameter *)r->said.parameters)[r->said.parameter_count++] = said;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetStringParameter(Request *r, const char *name, const char *value) {
  return parameter(r, (th_parameter){.name = name, .type = TRITONSERVER_PARAMETER_STRING, .text = value, .size = strlen(value)});
}

Error *TRITONSERVER_InferenceRequestSetIntParameter(Request *r, const char *name, const int64_t value) {
  return parameter(r, (th_parameter){.name = name, .type = TRITONSERVER_PARAMETER_INT, .integer = value});
}

Error *TRITONSERVER_InferenceRequestSetBoolParameter(Request *r, const char *name, const bool value) {
  return parameter(r, (th_parameter){.name = name, .type = TRITONSERVER_PARAMETER_BOOL, .integer = value});
}

Error *TRITONSERVER_InferenceRequestSetDoubleParameter(Request *r, const char *name, const double value) {
  return parameter(r, (th_parameter){.name = name, .type = TRITONSERVER_PARAMETER_DOUBLE, .number = value});
}

Error *TRITONSERVER_InferenceRequestSetReleaseCallback(Request *r, TRITONSERVER_InferenceRequestReleaseFn_t release, void *with) {
  r->release = release;
  r->release_with = with;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestSetResponseCallback(Request *r, TRITONSERVER_ResponseAllocator *allocator,
                                                        void *allocate_with, TRITONSERVER_InferenceResponseCompleteFn_t respond,
                                                        void *respond_with) {
  r->allocator = allocator;
  r->allocate_with = allocate_with;
  r->respond = respond;
  r->respond_with = respond_with;
  return NULL;
}

Error *TRITONSERVER_InferenceRequestCancel(Request *r) {
  __atomic_store_n(&r->cancelled, true, __ATOMIC_RELAXED);
  return NULL;
}

Error *TRITONSERVER_ServerInferAsync(TRITONSERVER_Server *server, Request *r, TRITONSERVER_InferenceTrace *trace) {
  (void)server, (void)trace;
  if (r->allocator == NULL || r->respond == NULL || r->release == NULL)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "a request needs callbacks for its release and its responses");
  push(r);
  return NULL;
}

// place has the allocator give memory for an output, and copies it there.
static Error *place(Request *r, const th_output *from, placed *to) {
  void *memory = NULL;
  to->said = *from;
  to->said.data = NULL;
  to->type = TRITONSERVER_MEMORY_CPU;
  Error *error = r->allocator->alloc(r->allocator, from->name, from->bytes, TRITONSERVER_MEMORY_CPU, 0, r->allocate_with, &memory,
                                     &to->with, &to->type, &to->device);
  to->said.data = memory;
  if (error != NULL) return error;
  if (to->type == TRITONSERVER_MEMORY_GPU)
    return errorf(TRITONSERVER_ERROR_UNSUPPORTED, "memory for output '%s' of a call lies on a GPU, which is not supported", from->name);
  if (from->bytes > 0) memcpy(memory, from->data, from->bytes);
  return NULL;
}

void call_answer(th_call *call, const th_answer *said) {
  Request *r = (Request *)call;
  uint32_t flags = said->final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0;
  if (said->empty) {
    r->respond(NULL, flags, r->respond_with);
    return;
  }
  Response *p = grown(sizeof *p);
  p->allocator = r->allocator;
  if (said->code >= 0) p->error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)said->code, said->text);
  p->outputs = take(&p->memory, said->output_count * sizeof *p->outputs);
  if (p->error == NULL && r->allocator->start != NULL) p->error = r->allocator->start(r->allocator, r->allocate_with);
  for (uint32_t i = 0; i < said->output_count && p->error == NULL; i++) {
    th_output own = said->outputs[i];
    own.name = take_text(&p->memory, own.name, strlen(own.name));
    int64_t *shape = take(&p->memory, own.rank * sizeof *shape);
    if (own.rank > 0) memcpy(shape, own.shape, own.rank * sizeof *shape);
    own.shape = shape;
    p->error = place(r, &own, &p->outputs[i]);
    if (p->error == NULL) p->output_count++;
  }
  p->parameters = take(&p->memory, said->parameter_count * sizeof *p->parameters);
  for (uint32_t i = 0; i < said->parameter_count; i++) {
    th_parameter own = said->parameters[i];
    own.name = take_text(&p->memory, own.name, strlen(own.name));
    if (own.text != NULL) own.text = take_text(&p->memory, own.text, own.size);
    p->parameters[p->parameter_count++] = own;
  }
  r->respond(p, flags, r->respond_with);
}

Error *TRITONSERVER_InferenceResponseDelete(Response *p) {
  if (p == NULL) return NULL; // Triton's Python backend does that
  for (uint32_t i = 0; i < p->output_count; i++) {
    placed *o = &p->outputs[i];
    Error *error = p->allocator->release(p->allocator, (void *)o->said.data, o->with, o->said.bytes, o->type, o->device);
    TRITONSERVER_ErrorDelete(error);
  }
  TRITONSERVER_ErrorDelete(p->error);
  give_back(p->memory);
  free(p);
  return NULL;
}

// The error is new each time, and the caller's: Triton's Python backend deletes it.
Error *TRITONSERVER_InferenceResponseError(Response *p) {
  return p->error != NULL ? TRITONSERVER_ErrorNew(p->error->code, p->error->text) : NULL;
}

Error *TRITONSERVER_InferenceResponseOutputCount(Response *p, uint32_t *count) {
  *count = p->output_count;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseOutput(Response *p, const uint32_t index, const char **name, TRITONSERVER_DataType *datatype,
                                            const int64_t **shape, uint64_t *rank, const void **data, size_t *bytes,
                                            TRITONSERVER_MemoryType *type, int64_t *device, void **with) {
  if (index >= p->output_count)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: response has %u outputs", index, p->output_count);
  placed *o = &p->outputs[index];
  *name = o->said.name;
  *datatype = o->said.datatype;
  *shape = o->said.shape;
  *rank = o->said.rank;
  *data = o->said.data;
  *bytes = o->said.bytes;
  *type = o->type;
  *device = o->device;
  *with = o->with;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseParameterCount(Response *p, uint32_t *count) {
  *count = p->parameter_count;
  return NULL;
}

Error *TRITONSERVER_InferenceResponseParameter(Response *p, const uint32_t index, const char **name,
                                               TRITONSERVER_ParameterType *type, const void **value) {
  if (index >= p->parameter_count)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: response has %u parameters", index, p->parameter_count);
  const th_parameter *said = &p->parameters[index];
  *name = said->name;
  *type = said->type;
  *value = said->text != NULL ? (const void *)said->text : said->type == TRITONSERVER_PARAMETER_DOUBLE ? (const void *)&said->number
                                                                                                    : (const void *)&said->integer;
  return NULL;
}

void call_end(th_call *call, int code, const char *text, bool yes) {
  Request *r = (Request *)call;
  if (call->kind == TH_INFER) {
    r->release(r, TRITONSERVER_REQUEST_RELEASE_ALL, r->release_with); // it may delete the request
    return;
  }
  pthread_mutex_lock(&lock);
  r->ended = true;
  r->yes = yes;
  if (code >= 0) r->error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)code, text);
  pthread_cond_broadcast(&ended);
  pthread_mutex_unlock(&lock);
}

// ask makes a call and waits for its end.
static Error *ask(TRITONSERVER_Server *server, int kind, const char *model, int64_t version,
                  const TRITONSERVER_Parameter **parameters, uint64_t count, bool *yes) {
  Request *r = NULL;
  TRITONSERVER_InferenceRequestNew(&r, server, model, version);
  r->said.kind = kind;
  for (uint64_t i = 0; i < count; i++) parameter(r, *(const th_parameter *)parameters[i]);
  push(r);
  pthread_mutex_lock(&lock);
  while (!r->ended) pthread_cond_wait(&ended, &lock);
  pthread_mutex_unlock(&lock);
  Error *error = r->error;
  if (yes != NULL) *yes = r->yes;
  TRITONSERVER_InferenceRequestDelete(r);
  return error;
}

Error *TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server *server, const char *model, const int64_t version, bool *ready) {
  *ready = false;
  return ask(server, TH_READY, model, version, NULL, 0, ready);
}

// Every call takes any number of answers, so that nobody has to know before whether the model is decoupled.
Error *TRITONSERVER_ServerModelTransactionProperties(TRITONSERVER_Server *server, const char *model, const int64_t version,
                                                     uint32_t *flags, void **value) {
  (void)server, (void)model, (void)version;
  *flags = TRITONSERVER_TXN_ONE_TO_ONE;
  if (value != NULL) *value = NULL;
  return NULL;
}

Error *TRITONSERVER_ServerLoadModel(TRITONSERVER_Server *server, const char *model) {
  return ask(server, TH_LOAD, model, -1, NULL, 0, NULL);
}

Error *TRITONSERVER_ServerLoadModelWithParameters(TRITONSERVER_Server *server, const char *model,
                                                  const TRITONSERVER_Parameter **parameters, const uint64_t count) {
  return ask(server, TH_LOAD, model, -1, parameters, count, NULL);
}

Error *TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server *server, const char *model) {
  return ask(server, TH_UNLOAD, model, -1, NULL, 0, NULL);
}

Error *TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server *server, const char *model) {
  return ask(server, TH_UNLOAD_DEPENDENTS, model, -1, NULL, 0, NULL);
}
