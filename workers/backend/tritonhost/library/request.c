// What a backend may ask of a request and its inputs.
#include "private.h"

Error *alive(TRITONBACKEND_Request *r, const char *function) {
  if (r != NULL && r->magic == MAGIC_REQUEST && !r->released) return NULL;
  return fault("%s was called with a request that was released, or is none", function);
}

#define ALIVE(r)                          \
  do {                                    \
    Error *gone = alive(r, __func__);     \
    if (gone != NULL) return gone;        \
  } while (0)

Error *TRITONBACKEND_RequestId(TRITONBACKEND_Request *r, const char **id) {
  ALIVE(r);
  *id = r->said.id;
  return NULL;
}

Error *TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request *r, bool *cancelled) {
  ALIVE(r);
  *cancelled = __atomic_load_n(&r->cancelled, __ATOMIC_RELAXED);
  return NULL;
}

Error *TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request *r, uint64_t *id) {
  ALIVE(r);
  if (r->said.correlation_text[0] != '\0')
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "correlation ID in request is not an unsigned int");
  *id = r->said.correlation;
  return NULL;
}

Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *r, const char **id) {
  ALIVE(r);
  if (r->said.correlation_text[0] == '\0')
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "correlation ID in request is not a string");
  *id = r->said.correlation_text;
  return NULL;
}

Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request *r, uint64_t *timeout) {
  ALIVE(r);
  *timeout = r->said.timeout_us;
  return NULL;
}

Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *r, uint32_t *flags) {
  ALIVE(r);
  *flags = r->said.flags;
  return NULL;
}

Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *r, uint32_t *count) {
  ALIVE(r);
  *count = r->parameter_count;
  return NULL;
}

Error *TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *r, const uint32_t index, const char **name,
                                      TRITONSERVER_ParameterType *type, const void **value) {
  ALIVE(r);
  if (index >= r->parameter_count)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: request has %u parameters", index, r->parameter_count);
  const th_parameter *p = &r->parameters[index];
  *name = p->name;
  *type = p->type;
  switch (p->type) {
  case TRITONSERVER_PARAMETER_STRING:
  case TRITONSERVER_PARAMETER_BYTES: *value = p->text; break;
  case TRITONSERVER_PARAMETER_DOUBLE: *value = &p->number; break;
  default: *value = &p->integer; // of a bool, the first byte is it
  }
  return NULL;
}

Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *r, uint32_t *count) {
  ALIVE(r);
  *count = r->input_count;
  return NULL;
}

Error *TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request *r, const uint32_t index, TRITONBACKEND_Input **input) {
  ALIVE(r);
  if (index >= r->input_count)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: request has %u inputs", index, r->input_count);
  *input = &r->inputs[index];
  return NULL;
}

Error *TRITONBACKEND_RequestInputName(TRITONBACKEND_Request *r, const uint32_t index, const char **name) {
  *name = NULL;
  TRITONBACKEND_Input *input = NULL;
  Error *error = TRITONBACKEND_RequestInputByIndex(r, index, &input);
  if (error == NULL) *name = input->said.name;
  return error;
}

Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *r, const char *name, TRITONBACKEND_Input **input) {
  ALIVE(r);
  for (uint32_t i = 0; i < r->input_count; i++) {
    if (strcmp(r->inputs[i].said.name, name) != 0) continue;
    *input = &r->inputs[i];
    return NULL;
  }
  *input = NULL;
  return errorf(TRITONSERVER_ERROR_INVALID_ARG, "unknown request input name %s", name);
}

Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *r, uint32_t *count) {
  ALIVE(r);
  *count = r->wanted_count;
  return NULL;
}

Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *r, const uint32_t index, const char **name) {
  ALIVE(r);
  *name = NULL;
  if (index >= r->wanted_count)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: request has %u requested outputs", index, r->wanted_count);
  *name = r->wanted[index];
  return NULL;
}

// Where an output's memory will lie isn't known before it is asked for; backends then take what OutputBuffer gives.
Error *TRITONBACKEND_RequestOutputBufferProperties(TRITONBACKEND_Request *r, const char *name, size_t *bytes,
                                                   TRITONSERVER_MemoryType *type, int64_t *device) {
  (void)name, (void)bytes, (void)type, (void)device;
  ALIVE(r);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "Output properties are not available");
}

Error *TRITONBACKEND_RequestTrace(TRITONBACKEND_Request *r, TRITONSERVER_InferenceTrace **trace) {
  ALIVE(r);
  *trace = NULL;
  return NULL;
}

Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *in, const char **name, TRITONSERVER_DataType *datatype,
                                     const int64_t **shape, uint32_t *rank, uint64_t *bytes, uint32_t *buffers) {
  if (name != NULL) *name = in->said.name;
  if (datatype != NULL) *datatype = in->said.datatype;
  if (shape != NULL) *shape = in->said.shape;
  if (rank != NULL) *rank = in->said.rank;
  if (bytes != NULL) *bytes = in->said.bytes;
  if (buffers != NULL) *buffers = in->said.bytes > 0;
  return NULL;
}

Error *TRITONBACKEND_InputPropertiesForHostPolicy(TRITONBACKEND_Input *in, const char *policy, const char **name,
                                                  TRITONSERVER_DataType *datatype, const int64_t **shape, uint32_t *rank,
                                                  uint64_t *bytes, uint32_t *buffers) {
  (void)policy;
  return TRITONBACKEND_InputProperties(in, name, datatype, shape, rank, bytes, buffers);
}

Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *in, const uint32_t index, const void **data, uint64_t *bytes,
                                 TRITONSERVER_MemoryType *type, int64_t *device) {
  if (index >= (uint32_t)(in->said.bytes > 0)) {
    *data = NULL;
    *bytes = 0;
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u: input '%s' has %d buffers", index, in->said.name,
                  in->said.bytes > 0);
  }
  *data = in->said.data;
  *bytes = in->said.bytes;
  *type = TRITONSERVER_MEMORY_CPU;
  *device = 0;
  return NULL;
}

Error *TRITONBACKEND_InputBufferForHostPolicy(TRITONBACKEND_Input *in, const char *policy, const uint32_t index,
                                              const void **data, uint64_t *bytes, TRITONSERVER_MemoryType *type,
                                              int64_t *device) {
  (void)policy;
  return TRITONBACKEND_InputBuffer(in, index, data, bytes, type, device);
}

Error *TRITONBACKEND_InputBufferAttributes(TRITONBACKEND_Input *in, const uint32_t index, const void **data,
                                           TRITONSERVER_BufferAttributes **attributes) {
  uint64_t bytes = 0;
  int64_t device = 0;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  Error *error = TRITONBACKEND_InputBuffer(in, index, data, &bytes, &type, &device);
  if (error == NULL) *attributes = &in->attributes;
  return error;
}

Error *TRITONBACKEND_StateNew(TRITONBACKEND_State **state, TRITONBACKEND_Request *r, const char *name,
                              const TRITONSERVER_DataType datatype, const int64_t *shape, const uint32_t rank) {
  ALIVE(r);
  TRITONBACKEND_Model *m = r->batch->instance->model;
  *state = NULL;
  uint32_t i = 0;
  while (i < m->spec.state_count && strcmp(m->states[i].name, name) != 0) i++;
  if (i == m->spec.state_count)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "state '%s' is not a valid state name", name);
  pthread_mutex_lock(&r->batch->instance->lock);
  TRITONBACKEND_State *s = &r->states[i];
  memset(s, 0, sizeof *s);
  s->magic = MAGIC_STATE;
  s->request = r;
  s->value.name = m->states[i].name;
  s->value.datatype = datatype;
  s->value.rank = rank;
  int64_t *own = take(&r->batch->memory, rank * sizeof *own);
  if (rank > 0) memcpy(own, shape, rank * sizeof *own);
  s->value.shape = own;
  pthread_mutex_unlock(&r->batch->instance->lock);
  *state = s;
  return NULL;
}

Error *TRITONBACKEND_StateBuffer(TRITONBACKEND_State *s, void **buffer, const uint64_t bytes, TRITONSERVER_MemoryType *type,
                                 int64_t *device) {
  if (s->magic != MAGIC_STATE) return fault("%s was called with a state that is none", __func__);
  th_batch *b = s->request->batch;
  pthread_mutex_lock(&b->instance->lock);
  s->memory = take(&b->memory, bytes + GUARD);
  pthread_mutex_unlock(&b->instance->lock);
  memset(s->memory + bytes, GUARD_BYTE, GUARD);
  s->value.data = s->memory;
  s->value.bytes = bytes;
  s->attributes.bytes = bytes;
  *buffer = s->memory;
  *type = TRITONSERVER_MEMORY_CPU;
  *device = 0;
  return NULL;
}

Error *TRITONBACKEND_StateBufferAttributes(TRITONBACKEND_State *s, TRITONSERVER_BufferAttributes **attributes) {
  if (s->magic != MAGIC_STATE) return fault("%s was called with a state that is none", __func__);
  *attributes = &s->attributes;
  return NULL;
}

Error *TRITONBACKEND_StateUpdate(TRITONBACKEND_State *s) {
  if (s->magic != MAGIC_STATE) return fault("%s was called with a state that is none", __func__);
  if (s->memory == NULL) return errorf(TRITONSERVER_ERROR_INVALID_ARG, "state '%s' has no buffer", s->value.name);
  TRITONBACKEND_Model *m = s->request->batch->instance->model;
  for (int i = 0; i < GUARD; i++) {
    if (s->memory[s->value.bytes + (uint64_t)i] != GUARD_BYTE)
      die("backend '%s' wrote past the end of state '%s' of model '%s'; its process ends", m->backend->name, s->value.name, m->spec.name);
  }
  s->updated = true;
  return NULL;
}
