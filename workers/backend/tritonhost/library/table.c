// The table by which the worker calls this library.
#include "private.h"

static void start(bool verbose, th_set_config set_config) {
  host_verbose = verbose;
  host_set_config = set_config;
  watch_signals();
}

static bool parallel(TRITONBACKEND_Backend *backend) { return backend->parallel; }

static void last_words(const char *text) { log_line(TRITONSERVER_LOG_ERROR, NULL, 0, text); }

const th_table *th_host(void) {
  static const th_table table = {
      .start = start,
      .backend_open = backend_open,
      .backend_parallel = parallel,
      .model_new = model_new,
      .model_free = model_free,
      .instance_new = instance_new,
      .instance_free = instance_free,
      .batch_new = batch_new,
      .batch_request = batch_request,
      .batch_input = batch_input,
      .batch_parameter = batch_parameter,
      .execute = batch_execute,
      .cancel = batch_cancel,
      .keep = batch_keep,
      .events = batch_events,
      .open = batch_open,
      .instance_wait = instance_wait,
      .instance_stop = instance_stop,
      .events_free = events_free,
      .batch_free = batch_free,
      .metric_wait = metric_wait,
      .metric_free = metric_free,
      .call_wait = call_wait,
      .call_cancelled = call_cancelled,
      .call_answer = call_answer,
      .call_end = call_end,
      .error_new = TRITONSERVER_ErrorNew,
      .error_code = TRITONSERVER_ErrorCode,
      .error_text = TRITONSERVER_ErrorMessage,
      .error_delete = TRITONSERVER_ErrorDelete,
      .last_words = last_words,
  };
  return &table;
}
