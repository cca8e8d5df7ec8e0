// Calls of the library's table, for Go, which can't call pointers.
#pragma once
#include "library/host.h"

// th_open opens libtritonserver.so at an absolute path, once for the process. NULL: an error, in *why.
const char *th_open(const char *path, bool verbose);

TRITONSERVER_Error *th_error_new(int code, const char *text);
int th_error_code(TRITONSERVER_Error *error);
const char *th_error_text(TRITONSERVER_Error *error);
void th_error_delete(TRITONSERVER_Error *error);

TRITONSERVER_Error *th_backend_open(const char *name, const char *library, const char *config, TRITONBACKEND_Backend **backend);
bool th_backend_parallel(TRITONBACKEND_Backend *backend);
TRITONSERVER_Error *th_model_new(TRITONBACKEND_Backend *backend, const th_model_spec *spec, TRITONBACKEND_Model **model);
TRITONSERVER_Error *th_model_free(TRITONBACKEND_Model *model);
TRITONSERVER_Error *th_instance_new(TRITONBACKEND_Model *model, const th_instance_spec *spec,
                                    TRITONBACKEND_ModelInstance **instance);
TRITONSERVER_Error *th_instance_free(TRITONBACKEND_ModelInstance *instance);
th_batch *th_batch_new(TRITONBACKEND_ModelInstance *instance, uint32_t requests, uintptr_t tag, void *slab, uint64_t room);
void th_batch_request(th_batch *batch, const char *id, const char *correlation_text, uint64_t correlation,
                      uint64_t timeout_us, uint32_t flags, const uint8_t *wanted);
void th_batch_input(th_batch *batch, const char *name, int datatype, uint32_t rank, const int64_t *shape, uintptr_t data,
                    uint64_t bytes);
void th_batch_parameter(th_batch *batch, const char *name, int type, const char *text, uint64_t size, int64_t integer,
                        double number);
TRITONSERVER_Error *th_execute(th_batch *batch);
void th_cancel(th_batch *batch, uint32_t request);
void th_keep(th_batch *batch);
th_event *th_events(th_batch *batch);
bool th_is_open(th_batch *batch);
th_event *th_instance_wait(TRITONBACKEND_ModelInstance *instance);
void th_instance_stop(TRITONBACKEND_ModelInstance *instance);
void th_events_free(th_event *first);
void th_batch_free(th_batch *batch);
th_metric *th_metric_wait(void);
void th_metric_free(th_metric *metric);
th_call *th_call_wait(void);
bool th_call_cancelled(th_call *call);
// th_answer_new begins an answer; th_answer_output and th_answer_parameter add to it, copying nothing, and th_answer_send
// sends and frees it.
th_answer *th_answer_new(uint32_t outputs, uint32_t parameters);
void th_answer_output(th_answer *answer, const char *name, int datatype, uint32_t rank, const int64_t *shape, uintptr_t data,
                      uint64_t bytes);
void th_answer_parameter(th_answer *answer, const char *name, int type, const char *text, uint64_t size, int64_t integer,
                         double number);
void th_answer_send(th_call *call, th_answer *answer, int code, const char *text, bool final, bool empty);
void th_call_end(th_call *call, int code, const char *text, bool yes);
void th_last_words(const char *text);
