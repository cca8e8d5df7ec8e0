// Calls of the library's table, for Go, which can't call pointers.
#pragma once
#include "library/host.h"

// sl_open opens libtritonserver.so at an absolute path, once for the process. NULL: an error, in *why.
const char *sl_open(const char *path, bool verbose);

TRITONSERVER_Error *sl_error_new(int code, const char *text);
int sl_error_code(TRITONSERVER_Error *error);
const char *sl_error_text(TRITONSERVER_Error *error);
void sl_error_delete(TRITONSERVER_Error *error);

TRITONSERVER_Error *sl_backend_open(const char *name, const char *library, const char *config, TRITONBACKEND_Backend **backend);
bool sl_backend_parallel(TRITONBACKEND_Backend *backend);
TRITONSERVER_Error *sl_model_new(TRITONBACKEND_Backend *backend, const sl_model_spec *spec, TRITONBACKEND_Model **model);
TRITONSERVER_Error *sl_model_free(TRITONBACKEND_Model *model);
TRITONSERVER_Error *sl_instance_new(TRITONBACKEND_Model *model, const sl_instance_spec *spec,
                                    TRITONBACKEND_ModelInstance **instance);
TRITONSERVER_Error *sl_instance_free(TRITONBACKEND_ModelInstance *instance);
sl_batch *sl_batch_new(TRITONBACKEND_ModelInstance *instance, uint32_t requests, uintptr_t tag, void *slab, uint64_t room);
void sl_batch_request(sl_batch *batch, const char *id, const char *correlation_text, uint64_t correlation,
                      uint64_t timeout_us, uint32_t flags, const uint8_t *wanted);
void sl_batch_input(sl_batch *batch, const char *name, int datatype, uint32_t rank, const int64_t *shape, uintptr_t data,
                    uint64_t bytes);
void sl_batch_parameter(sl_batch *batch, const char *name, int type, const char *text, uint64_t size, int64_t integer,
                        double number);
TRITONSERVER_Error *sl_execute(sl_batch *batch);
void sl_cancel(sl_batch *batch, uint32_t request);
void sl_keep(sl_batch *batch);
sl_event *sl_next(sl_batch *batch);
bool sl_is_open(sl_batch *batch);
sl_event *sl_instance_wait(TRITONBACKEND_ModelInstance *instance);
void sl_instance_stop(TRITONBACKEND_ModelInstance *instance);
void sl_event_free(sl_event *event);
void sl_batch_free(sl_batch *batch);
sl_metric *sl_metric_wait(void);
void sl_metric_free(sl_metric *metric);
void sl_last_words(const char *text);
