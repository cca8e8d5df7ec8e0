// Errors, messages, names of numbers, parameters and memory.
#include "private.h"

#include <stdarg.h>
#include <stdio.h>

void *grown(size_t bytes) {
  void *memory = calloc(1, bytes > 0 ? bytes : 1);
  if (memory == NULL) die("there is no memory for %zu bytes", bytes);
  return memory;
}

char *copied(const char *text) {
  size_t size = strlen(text) + 1;
  return memcpy(grown(size), text, size);
}

// chunk_size is that of the first chunk; later ones are larger.
enum { chunk_size = 1024 };

// take gives zeroed memory that ends with give_back.
void *take(chunk **memory, size_t bytes) {
  bytes = (bytes + 15) / 16 * 16;
  chunk *c = *memory;
  if (c == NULL || c->size - c->used < bytes) {
    size_t size = (c == NULL ? chunk_size : 4 * chunk_size) - sizeof(chunk);
    if (size < bytes) size = bytes;
    c = grown(sizeof(chunk) + size);
    c->size = size;
    c->next = *memory;
    *memory = c;
  }
  void *at = c->data + c->used;
  c->used += bytes;
  return at;
}

char *take_text(chunk **memory, const char *text, size_t size) {
  char *at = take(memory, size + 1);
  if (size > 0) memcpy(at, text, size);
  return at;
}

void give_back(chunk *memory) {
  while (memory != NULL) {
    chunk *next = memory->next;
    free(memory);
    memory = next;
  }
}

Error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor) {
  *major = 1;
  *minor = 34;
  return NULL;
}

Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
  *major = 1;
  *minor = 19;
  return NULL;
}

Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *text) {
  if (text == NULL) text = "";
  size_t size = strlen(text) + 1;
  Error *error = grown(sizeof(Error) + size);
  error->code = code;
  memcpy(error->text, text, size);
  return error;
}

Error *errorf(TRITONSERVER_Error_Code code, const char *format, ...) {
  char text[2048];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return TRITONSERVER_ErrorNew(code, text);
}

void TRITONSERVER_ErrorDelete(Error *error) { free(error); }
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(Error *error) { return error->code; }
const char *TRITONSERVER_ErrorMessage(Error *error) { return error->text; }

const char *TRITONSERVER_ErrorCodeString(Error *error) {
  switch (error->code) {
  case TRITONSERVER_ERROR_UNKNOWN: return "Unknown";
  case TRITONSERVER_ERROR_INTERNAL: return "Internal";
  case TRITONSERVER_ERROR_NOT_FOUND: return "Not found";
  case TRITONSERVER_ERROR_INVALID_ARG: return "Invalid argument";
  case TRITONSERVER_ERROR_UNAVAILABLE: return "Unavailable";
  case TRITONSERVER_ERROR_UNSUPPORTED: return "Unsupported";
  case TRITONSERVER_ERROR_ALREADY_EXISTS: return "Already exists";
  case TRITONSERVER_ERROR_CANCELLED: return "Cancelled";
  }
  return "<invalid code>";
}

static const struct {
  const char *name;
  uint32_t size;
} datatypes[] = {
    {"<invalid>", 0}, {"BOOL", 1}, {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8}, {"INT8", 1},  {"INT16", 2},
    {"INT32", 4},     {"INT64", 8}, {"FP16", 2}, {"FP32", 4},   {"FP64", 8},   {"BYTES", 0},  {"BF16", 2},
};
enum { datatype_count = sizeof datatypes / sizeof datatypes[0] };

const char *TRITONSERVER_DataTypeString(TRITONSERVER_DataType type) {
  return datatypes[(unsigned)type < datatype_count ? type : 0].name;
}

uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType type) {
  return datatypes[(unsigned)type < datatype_count ? type : 0].size;
}

TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char *name) {
  for (int i = 1; i < datatype_count; i++) {
    if (strcmp(name, datatypes[i].name) == 0) return (TRITONSERVER_DataType)i;
  }
  return TRITONSERVER_TYPE_INVALID;
}

const char *TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType type) {
  switch (type) {
  case TRITONSERVER_MEMORY_CPU: return "CPU";
  case TRITONSERVER_MEMORY_CPU_PINNED: return "CPU_PINNED";
  case TRITONSERVER_MEMORY_GPU: return "GPU";
  }
  return "<invalid>";
}

const char *TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind) {
  switch (kind) {
  case TRITONSERVER_INSTANCEGROUPKIND_AUTO: return "AUTO";
  case TRITONSERVER_INSTANCEGROUPKIND_CPU: return "CPU";
  case TRITONSERVER_INSTANCEGROUPKIND_GPU: return "GPU";
  case TRITONSERVER_INSTANCEGROUPKIND_MODEL: return "MODEL";
  }
  return "<invalid>";
}

const char *TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType type) {
  switch (type) {
  case TRITONSERVER_PARAMETER_STRING: return "STRING";
  case TRITONSERVER_PARAMETER_INT: return "INT";
  case TRITONSERVER_PARAMETER_BOOL: return "BOOL";
  case TRITONSERVER_PARAMETER_DOUBLE: return "DOUBLE";
  case TRITONSERVER_PARAMETER_BYTES: return "BYTES";
  }
  return "<invalid>";
}

TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, const TRITONSERVER_ParameterType type,
                                                  const void *value) {
  th_parameter *p = grown(sizeof *p);
  p->name = copied(name);
  p->type = type;
  switch (type) {
  case TRITONSERVER_PARAMETER_STRING: p->text = copied(value), p->size = strlen(p->text); break;
  case TRITONSERVER_PARAMETER_INT: p->integer = *(const int64_t *)value; break;
  case TRITONSERVER_PARAMETER_BOOL: p->integer = *(const bool *)value; break;
  case TRITONSERVER_PARAMETER_DOUBLE: p->number = *(const double *)value; break;
  default: TRITONSERVER_ParameterDelete((TRITONSERVER_Parameter *)p); return NULL;
  }
  return (TRITONSERVER_Parameter *)p;
}

TRITONSERVER_Parameter *TRITONSERVER_ParameterBytesNew(const char *name, const void *data, const uint64_t size) {
  th_parameter *p = grown(sizeof *p);
  p->name = copied(name);
  p->type = TRITONSERVER_PARAMETER_BYTES;
  p->size = size;
  char *bytes = grown(size);
  if (size > 0) memcpy(bytes, data, size);
  p->text = bytes;
  return (TRITONSERVER_Parameter *)p;
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter *parameter) {
  th_parameter *p = (th_parameter *)parameter;
  if (p == NULL) return;
  free((char *)p->name);
  free((char *)p->text);
  free(p);
}

// A message is the JSON text that it was made of: who reads it parses it, and tells what is wrong.
Error *TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message **message, const char *base, size_t size) {
  TRITONSERVER_Message *m = grown(sizeof *m);
  m->size = size;
  m->text = grown(size + 1);
  memcpy(m->text, base, size);
  *message = m;
  return NULL;
}

Error *TRITONSERVER_MessageDelete(TRITONSERVER_Message *message) {
  if (message != NULL) free(message->text);
  free(message);
  return NULL;
}

Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message, const char **base, size_t *size) {
  *base = message->text;
  *size = message->size;
  return NULL;
}

Error *TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes **attributes) {
  *attributes = grown(sizeof **attributes);
  return NULL;
}

Error *TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes *a) {
  free(a);
  return NULL;
}

#define SETTER(name, type, field)                                                                   \
  Error *TRITONSERVER_BufferAttributesSet##name(TRITONSERVER_BufferAttributes *a, type value) {     \
    a->field = value;                                                                               \
    return NULL;                                                                                    \
  }                                                                                                 \
  Error *TRITONSERVER_BufferAttributes##name(TRITONSERVER_BufferAttributes *a, type *value) {       \
    *value = a->field;                                                                              \
    return NULL;                                                                                    \
  }

SETTER(MemoryTypeId, int64_t, device)
SETTER(MemoryType, TRITONSERVER_MemoryType, type)
SETTER(CudaIpcHandle, void *, ipc)
SETTER(ByteSize, size_t, bytes)

// Traces: no request has one (RequestTrace gives NULL), and backends ask no further then.
Error *TRITONSERVER_InferenceTraceReportActivity(TRITONSERVER_InferenceTrace *trace, uint64_t at, const char *activity) {
  (void)trace, (void)at, (void)activity;
  return NULL;
}
