//go:build cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <stdlib.h>

// From Go: see complete.go.
extern TRITONSERVER_Error *sluiceSetConfig(uintptr_t owner, char *json, size_t size, char **merged);

static const th_table *table;

static TRITONSERVER_Error *set_config(uintptr_t owner, const char *json, size_t size, char **merged) {
  return sluiceSetConfig(owner, (char *)json, size, merged);
}

// The library's names are everybody's: a backend that was linked without it finds them so.
const char *th_open(const char *path, bool verbose) {
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) return dlerror();
  const th_table *(*host)(void) = NULL;
  *(void **)&host = dlsym(library, "th_host");
  if (host == NULL) return "it is another library of that name";
  table = host();
  table->start(verbose, set_config);
  return NULL;
}

TRITONSERVER_Error *th_error_new(int code, const char *text) { return table->error_new((TRITONSERVER_Error_Code)code, text); }
int th_error_code(TRITONSERVER_Error *error) { return (int)table->error_code(error); }
const char *th_error_text(TRITONSERVER_Error *error) { return table->error_text(error); }
void th_error_delete(TRITONSERVER_Error *error) { table->error_delete(error); }

TRITONSERVER_Error *th_backend_open(const char *name, const char *library, const char *config, TRITONBACKEND_Backend **backend) {
  return table->backend_open(name, library, config, backend);
}
bool th_backend_parallel(TRITONBACKEND_Backend *backend) { return table->backend_parallel(backend); }
TRITONSERVER_Error *th_model_new(TRITONBACKEND_Backend *backend, const th_model_spec *spec, TRITONBACKEND_Model **model) {
  return table->model_new(backend, spec, model);
}
TRITONSERVER_Error *th_model_free(TRITONBACKEND_Model *model) { return table->model_free(model); }
TRITONSERVER_Error *th_instance_new(TRITONBACKEND_Model *model, const th_instance_spec *spec,
                                    TRITONBACKEND_ModelInstance **instance) {
  return table->instance_new(model, spec, instance);
}
TRITONSERVER_Error *th_instance_free(TRITONBACKEND_ModelInstance *instance) { return table->instance_free(instance); }

th_batch *th_batch_new(TRITONBACKEND_ModelInstance *instance, uint32_t requests, uintptr_t tag, void *slab, uint64_t room) {
  return table->batch_new(instance, requests, tag, slab, room);
}

void th_batch_request(th_batch *batch, const char *id, const char *correlation_text, uint64_t correlation,
                      uint64_t timeout_us, uint32_t flags, const uint8_t *wanted) {
  th_request said = {id, correlation_text, correlation, timeout_us, flags, wanted};
  table->batch_request(batch, &said);
}

void th_batch_input(th_batch *batch, const char *name, int datatype, uint32_t rank, const int64_t *shape, uintptr_t data,
                    uint64_t bytes) {
  th_input said = {name, (TRITONSERVER_DataType)datatype, rank, shape, (const void *)data, bytes};
  table->batch_input(batch, &said);
}

void th_batch_parameter(th_batch *batch, const char *name, int type, const char *text, uint64_t size, int64_t integer,
                        double number) {
  th_parameter said = {name, (TRITONSERVER_ParameterType)type, text, size, integer, number};
  table->batch_parameter(batch, &said);
}

TRITONSERVER_Error *th_execute(th_batch *batch) { return table->execute(batch); }
void th_cancel(th_batch *batch, uint32_t request) { table->cancel(batch, request); }
void th_keep(th_batch *batch) { table->keep(batch); }
th_event *th_events(th_batch *batch) { return table->events(batch); }
bool th_is_open(th_batch *batch) { return table->open(batch); }
th_event *th_instance_wait(TRITONBACKEND_ModelInstance *instance) { return table->instance_wait(instance); }
void th_instance_stop(TRITONBACKEND_ModelInstance *instance) { table->instance_stop(instance); }
void th_events_free(th_event *first) { table->events_free(first); }
void th_batch_free(th_batch *batch) { table->batch_free(batch); }
th_metric *th_metric_wait(void) { return table->metric_wait(); }
void th_metric_free(th_metric *metric) { table->metric_free(metric); }
void th_last_words(const char *text) { table->last_words(text); }

th_call *th_call_wait(void) { return table->call_wait(); }
bool th_call_cancelled(th_call *call) { return table->call_cancelled(call); }
void th_call_end(th_call *call, int code, const char *text, bool yes) { table->call_end(call, code, text, yes); }

static void *room(size_t count, size_t size) {
  void *memory = calloc(count > 0 ? count : 1, size);
  if (memory == NULL) abort();
  return memory;
}

th_answer *th_answer_new(uint32_t outputs, uint32_t parameters) {
  th_answer *a = room(1, sizeof *a);
  a->outputs = room(outputs, sizeof *a->outputs);
  a->parameters = room(parameters, sizeof *a->parameters);
  return a;
}

// The texts and shapes are C memory, which Go frees after th_answer_send.
void th_answer_output(th_answer *a, const char *name, int datatype, uint32_t rank, const int64_t *shape, uintptr_t data,
                      uint64_t bytes) {
  th_output said = {name, (TRITONSERVER_DataType)datatype, rank, shape, (const void *)data, bytes};
  ((th_output *)a->outputs)[a->output_count++] = said;
}

void th_answer_parameter(th_answer *a, const char *name, int type, const char *text, uint64_t size, int64_t integer,
                         double number) {
  th_parameter said = {name, (TRITONSERVER_ParameterType)type, text, size, integer, number};
  ((th_parameter *)a->parameters)[a->parameter_count++] = said;
}

void th_answer_send(th_call *call, th_answer *a, int code, const char *text, bool final, bool empty) {
  a->code = code;
  a->text = text;
  a->final = final;
  a->empty = empty;
  table->call_answer(call, a);
  free((void *)a->outputs);
  free((void *)a->parameters);
  free(a);
}
