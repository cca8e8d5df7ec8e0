//go:build cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>

// From Go: see complete.go.
extern TRITONSERVER_Error *sluiceSetConfig(uintptr_t owner, char *json, size_t size, char **merged);

static const sl_table *table;

static TRITONSERVER_Error *set_config(uintptr_t owner, const char *json, size_t size, char **merged) {
  return sluiceSetConfig(owner, (char *)json, size, merged);
}

// The library's names are everybody's: a backend that was linked without it finds them so.
const char *sl_open(const char *path, bool verbose) {
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == NULL) return dlerror();
  const sl_table *(*host)(void) = NULL;
  *(void **)&host = dlsym(library, "sl_host");
  if (host == NULL) return "it is another library of that name";
  table = host();
  table->start(verbose, set_config);
  return NULL;
}

TRITONSERVER_Error *sl_error_new(int code, const char *text) { return table->error_new((TRITONSERVER_Error_Code)code, text); }
int sl_error_code(TRITONSERVER_Error *error) { return (int)table->error_code(error); }
const char *sl_error_text(TRITONSERVER_Error *error) { return table->error_text(error); }
void sl_error_delete(TRITONSERVER_Error *error) { table->error_delete(error); }

TRITONSERVER_Error *sl_backend_open(const char *name, const char *library, const char *config, TRITONBACKEND_Backend **backend) {
  return table->backend_open(name, library, config, backend);
}
bool sl_backend_parallel(TRITONBACKEND_Backend *backend) { return table->backend_parallel(backend); }
TRITONSERVER_Error *sl_model_new(TRITONBACKEND_Backend *backend, const sl_model_spec *spec, TRITONBACKEND_Model **model) {
  return table->model_new(backend, spec, model);
}
TRITONSERVER_Error *sl_model_free(TRITONBACKEND_Model *model) { return table->model_free(model); }
TRITONSERVER_Error *sl_instance_new(TRITONBACKEND_Model *model, const sl_instance_spec *spec,
                                    TRITONBACKEND_ModelInstance **instance) {
  return table->instance_new(model, spec, instance);
}
TRITONSERVER_Error *sl_instance_free(TRITONBACKEND_ModelInstance *instance) { return table->instance_free(instance); }

sl_batch *sl_batch_new(TRITONBACKEND_ModelInstance *instance, uint32_t requests, uintptr_t tag, void *slab, uint64_t room) {
  return table->batch_new(instance, requests, tag, slab, room);
}

void sl_batch_request(sl_batch *batch, const char *id, const char *correlation_text, uint64_t correlation,
                      uint64_t timeout_us, uint32_t flags, const uint8_t *wanted) {
  sl_request said = {id, correlation_text, correlation, timeout_us, flags, wanted};
  table->batch_request(batch, &said);
}

void sl_batch_input(sl_batch *batch, const char *name, int datatype, uint32_t rank, const int64_t *shape, uintptr_t data,
                    uint64_t bytes) {
  sl_input said = {name, (TRITONSERVER_DataType)datatype, rank, shape, (const void *)data, bytes};
  table->batch_input(batch, &said);
}

void sl_batch_parameter(sl_batch *batch, const char *name, int type, const char *text, uint64_t size, int64_t integer,
                        double number) {
  sl_parameter said = {name, (TRITONSERVER_ParameterType)type, text, size, integer, number};
  table->batch_parameter(batch, &said);
}

TRITONSERVER_Error *sl_execute(sl_batch *batch) { return table->execute(batch); }
void sl_cancel(sl_batch *batch, uint32_t request) { table->cancel(batch, request); }
void sl_keep(sl_batch *batch) { table->keep(batch); }
sl_event *sl_next(sl_batch *batch) { return table->next(batch); }
bool sl_is_open(sl_batch *batch) { return table->open(batch); }
sl_event *sl_instance_wait(TRITONBACKEND_ModelInstance *instance) { return table->instance_wait(instance); }
void sl_instance_stop(TRITONBACKEND_ModelInstance *instance) { table->instance_stop(instance); }
void sl_event_free(sl_event *event) { table->event_free(event); }
void sl_batch_free(sl_batch *batch) { table->batch_free(batch); }
sl_metric *sl_metric_wait(void) { return table->metric_wait(); }
void sl_metric_free(sl_metric *metric) { table->metric_free(metric); }
void sl_last_words(const char *text) { table->last_words(text); }
