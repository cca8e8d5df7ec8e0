// What the worker calls of this library, and what it reads of it. The worker opens the library, asks it for the table
// (th_host), and calls nothing else; backends call the functions of functions.h.
//
// Strings and arrays that the worker passes are copied, but for the data of inputs, which must stay until the batch is
// freed, and the slab. An error is NULL for success, and the worker's to delete.
#pragma once
#include "abi.h"

typedef struct th_batch th_batch;

// th_tensor_spec is an output or a state of the config, by which a backend may answer.
typedef struct {
  const char *name;
  const char *input; // of a state: the input that has its value; NULL for an output
} th_tensor_spec;

typedef struct {
  const char *name, *repository, *config; // config: JSON
  uint64_t version;
  bool complete;  // the backend may complete the config
  bool decoupled; // a request may have any number of answers
  bool iterative; // a request may be rescheduled
  const th_tensor_spec *outputs, *states;
  uint32_t output_count, state_count;
  uintptr_t owner; // handed to th_set_config
} th_model_spec;

typedef struct {
  const char *name, *host_policy_name, *host_policy; // JSON
  TRITONSERVER_InstanceGroupKind kind;
  int32_t device;
  const char *const *profiles;
  uint32_t profile_count;
} th_instance_spec;

typedef struct {
  const char *name;
  TRITONSERVER_ParameterType type;
  const char *text; // of strings and bytes
  uint64_t size;    // bytes of text
  int64_t integer;  // also of booleans
  double number;
} th_parameter;

typedef struct {
  const char *name; // it stays the worker's, and valid as long as the model
  TRITONSERVER_DataType datatype;
  uint32_t rank;
  const int64_t *shape;
  const void *data;
  uint64_t bytes;
} th_input;

typedef struct {
  const char *id, *correlation_text; // "" for none
  uint64_t correlation, timeout_us;
  uint32_t flags;
  const uint8_t *wanted; // for each output of the model, whether it was asked for
} th_request;

// th_output is an output, or a state, of an answer.
typedef struct {
  const char *name;
  TRITONSERVER_DataType datatype;
  uint32_t rank;
  const int64_t *shape;
  const void *data;
  uint64_t bytes;
} th_output;

// th_event is something that became of a request. It is the worker's until it gives it back.
typedef struct th_event {
  struct th_event *next; // in what batch_events gave; NULL: the last
  th_batch *batch;
  uintptr_t tag;    // the batch's: see batch_new
  uint32_t request; // its index
  bool final;       // nothing comes of this request any more, and nobody reads its inputs
  bool answer;      // there is an answer: an error, or outputs; false: it has only ended
  bool reschedule;  // it is to be executed again
  TRITONSERVER_Error *error;
  uint32_t output_count, state_count, parameter_count;
  const th_output *outputs, *states;
  const th_parameter *parameters;
} th_event;

// th_metric is a change of a figure.
typedef struct {
  const char *family, *help, *labels; // labels: JSON object
  int kind;                           // TRITONSERVER_MetricKind
  int change;                         // 0 set, 1 add, 2 observe, 3 declare, 4 delete
  double value;
  uint32_t bucket_count;
  const double *buckets;
} th_metric;

// th_call is something that a backend asks of the server. It is the worker's until call_end.
enum { TH_INFER, TH_READY, TH_LOAD, TH_UNLOAD, TH_UNLOAD_DEPENDENTS };
typedef struct {
  int kind;
  uintptr_t owner; // of the model that calls: th_model_spec.owner
  const char *model;
  int64_t version; // -1: by the version policy
  const char *id, *correlation_text;
  uint64_t correlation, timeout_us, priority;
  uint32_t flags, input_count, output_count, parameter_count;
  const th_input *inputs;
  const char *const *outputs;
  const th_parameter *parameters; // of an inference, or of a load
} th_call;

// th_answer is an answer to an inference.
typedef struct {
  int code; // TRITONSERVER_Error_Code; -1: no error
  const char *text;
  bool final, empty; // empty: it only says that it is the final one
  uint32_t output_count, parameter_count;
  const th_output *outputs;
  const th_parameter *parameters;
} th_answer;

typedef TRITONSERVER_Error *(*th_set_config)(uintptr_t owner, const char *json, size_t size, char **merged);

typedef struct {
  // start says once what the library needs to know; verbose: verbose lines are logged. set_config merges what a backend
  // says of a config, on the thread on which model_new was called; *merged is from malloc.
  void (*start)(bool verbose, th_set_config set_config);
  // backend_open opens a backend's library and initializes the backend, once for each name and path.
  TRITONSERVER_Error *(*backend_open)(const char *name, const char *library, const char *config,
                                      TRITONBACKEND_Backend **backend);
  bool (*backend_parallel)(TRITONBACKEND_Backend *backend); // a model's instances may be made at once
  TRITONSERVER_Error *(*model_new)(TRITONBACKEND_Backend *backend, const th_model_spec *spec, TRITONBACKEND_Model **model);
  TRITONSERVER_Error *(*model_free)(TRITONBACKEND_Model *model);
  TRITONSERVER_Error *(*instance_new)(TRITONBACKEND_Model *model, const th_instance_spec *spec,
                                      TRITONBACKEND_ModelInstance **instance);
  TRITONSERVER_Error *(*instance_free)(TRITONBACKEND_ModelInstance *instance);

  // batch_new begins a batch; tag is the worker's own. slab is memory for outputs; it may be empty.
  th_batch *(*batch_new)(TRITONBACKEND_ModelInstance *instance, uint32_t requests, uintptr_t tag, void *slab, uint64_t room);
  void (*batch_request)(th_batch *batch, const th_request *request);
  void (*batch_input)(th_batch *batch, const th_input *input);             // of the last request
  void (*batch_parameter)(th_batch *batch, const th_parameter *parameter); // of the last request
  // execute has the backend execute it. After an error the requests are nobody's, and none has an event.
  TRITONSERVER_Error *(*execute)(th_batch *batch);
  void (*cancel)(th_batch *batch, uint32_t request);
  // keep has events of the batch, also those that are there, come from instance_wait.
  void (*keep)(th_batch *batch);
  th_event *(*events)(th_batch *batch); // all that there are; it does not wait; NULL: none
  bool (*open)(th_batch *batch);      // events will come, or are there
  // instance_wait waits for an event of a kept batch; NULL: instance_stop was called, and there is none.
  th_event *(*instance_wait)(TRITONBACKEND_ModelInstance *instance);
  void (*instance_stop)(TRITONBACKEND_ModelInstance *instance);
  void (*events_free)(th_event *first); // and those behind it
  void (*batch_free)(th_batch *batch);

  th_metric *(*metric_wait)(void); // waits for a change of a figure
  void (*metric_free)(th_metric *metric);
  th_call *(*call_wait)(void); // waits for what a backend asks
  bool (*call_cancelled)(th_call *call);
  void (*call_answer)(th_call *call, const th_answer *answer);
  // call_end ends a call: of an inference, everything of which was answered; of others with an error (code, or -1) and
  // what they say.
  void (*call_end)(th_call *call, int code, const char *text, bool yes);
  TRITONSERVER_Error *(*error_new)(TRITONSERVER_Error_Code code, const char *text);
  TRITONSERVER_Error_Code (*error_code)(TRITONSERVER_Error *error);
  const char *(*error_text)(TRITONSERVER_Error *error);
  void (*error_delete)(TRITONSERVER_Error *error);
  void (*last_words)(const char *text); // logs a line, whatever state the process is in
} th_table;

__attribute__((visibility("default"))) const th_table *th_host(void);
