// What the files of this library share. Rules: an object's magic number says that it is alive; every entry checks it,
// since a backend that uses an object after its end must get an error, and not somebody else's memory.
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"

#define MAGIC_MODEL 0x6c646f6du
#define MAGIC_INSTANCE 0x74736e69u
#define MAGIC_REQUEST 0x71657221u
#define MAGIC_RESPONSE 0x70736572u
#define MAGIC_FACTORY 0x74636166u
#define MAGIC_OUTPUT 0x7074756fu
#define MAGIC_STATE 0x74617473u

// The memory behind each output, which must stay as it is.
#define GUARD 64
#define GUARD_BYTE 0x5c
#define ALIGN 64

typedef TRITONSERVER_Error Error;

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  char text[];
};

struct TRITONSERVER_Message {
  size_t size;
  char *text;
};

struct TRITONSERVER_BufferAttributes {
  TRITONSERVER_MemoryType type;
  int64_t device;
  size_t bytes;
  void *ipc;
};

// entries are the functions of a backend's library; those that it has not are NULL.
typedef struct {
  Error *(*initialize)(TRITONBACKEND_Backend *);
  Error *(*finalize)(TRITONBACKEND_Backend *);
  Error *(*attribute)(TRITONBACKEND_Backend *, TRITONBACKEND_BackendAttribute *);
  Error *(*model_initialize)(TRITONBACKEND_Model *);
  Error *(*model_finalize)(TRITONBACKEND_Model *);
  Error *(*instance_initialize)(TRITONBACKEND_ModelInstance *);
  Error *(*instance_finalize)(TRITONBACKEND_ModelInstance *);
  Error *(*execute)(TRITONBACKEND_ModelInstance *, TRITONBACKEND_Request **, const uint32_t);
} entries;

struct TRITONBACKEND_Backend {
  TRITONBACKEND_Backend *next;
  char *name, *library, *directory;
  TRITONSERVER_Message config;
  TRITONBACKEND_ExecutionPolicy policy;
  bool parallel;
  void *state, *handle;
  entries call;
  pthread_mutex_t device[17]; // DEVICE_BLOCKING: one batch at a time on each; 0 is the CPU
};

// A server is some 16 bytes for each model that was ever loaded.
struct TRITONSERVER_Server {
  uintptr_t owner;
};

struct TRITONBACKEND_Model {
  uint32_t magic;
  TRITONSERVER_Server *server;
  TRITONBACKEND_Backend *backend;
  th_model_spec spec; // its texts are the model's
  th_tensor_spec *outputs, *states;
  TRITONSERVER_Message config;
  void *state;
  pthread_mutex_t device[17];
};

struct TRITONBACKEND_ModelInstance {
  uint32_t magic;
  TRITONBACKEND_Model *model;
  char *name, *host_policy_name;
  TRITONSERVER_Message host_policy;
  TRITONSERVER_InstanceGroupKind kind;
  int32_t device;
  char **profiles;
  uint32_t profile_count;
  void *state;

  pthread_mutex_t lock; // over all below, and over the requests of its batches
  pthread_cond_t came;
  struct event *first, **last; // of kept batches
  bool stopped;
  th_batch *idle; // freed batches, the oldest first, so that stale pointers into them are found
  th_batch **idle_last;
  uint32_t idle_count, busy; // busy: batches that are not idle
};

// chunk is memory that is given back as a whole.
typedef struct chunk {
  struct chunk *next;
  size_t used, size;
  _Alignas(16) char data[];
} chunk;

typedef struct event {
  th_event public;
  struct event *next;
  TRITONBACKEND_Response *response; // whose outputs these are; NULL for none
} event;

struct TRITONBACKEND_Input {
  th_input said;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_State {
  uint32_t magic;
  bool updated;
  TRITONBACKEND_Request *request;
  th_output value;
  char *memory;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_Request {
  uint32_t magic;
  uint32_t index;
  th_batch *batch;
  th_request said;
  TRITONBACKEND_Input *inputs;
  th_parameter *parameters;
  uint32_t input_count, input_room, parameter_count, parameter_room, wanted_count;
  const char **wanted;
  TRITONBACKEND_State *states; // of the model's count
  bool cancelled;              // atomic
  bool released, final;
  uint32_t holders; // factories and answers that were not sent
  event *early;     // the answer of a model that isn't decoupled, until it is said to be the last
  event *held;      // the final event, until the request is released
};

struct th_batch {
  TRITONBACKEND_ModelInstance *instance;
  th_batch *next;
  uintptr_t tag;
  chunk *memory;
  TRITONBACKEND_Request *requests;
  TRITONBACKEND_Request **list;
  uint32_t count, room, open; // open: requests without their final event
  uint32_t users;             // the worker, and factories and answers that were not sent
  bool kept;
  char *slab;
  uint64_t slab_room;
  struct event *first, **last;
};

struct TRITONBACKEND_Output {
  uint32_t magic;
  th_output said;
  TRITONBACKEND_Response *response;
  char *memory;
  bool from_malloc, asked;
  TRITONSERVER_BufferAttributes attributes;
};

struct TRITONBACKEND_Response {
  uint32_t magic;
  TRITONBACKEND_Response *next; // in the list of those that have ended
  TRITONBACKEND_Request *request;
  chunk *memory;
  TRITONBACKEND_Output **outputs;
  th_parameter *parameters;
  uint32_t output_count, parameter_count, parameter_room;
};

struct TRITONBACKEND_ResponseFactory {
  uint32_t magic;
  TRITONBACKEND_Request *request;
};

extern th_set_config host_set_config;
extern bool host_verbose;

Error *errorf(TRITONSERVER_Error_Code code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *take(chunk **memory, size_t bytes);
char *take_text(chunk **memory, const char *text, size_t size);
void give_back(chunk *memory);
void *grown(size_t bytes); // zeroed; ends the process where there is none
char *copied(const char *text);

// fault logs what a backend did that it must not, and gives the error that it gets for it.
Error *fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
// die logs why, and ends the process.
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void log_line(TRITONSERVER_LogLevel level, const char *file, int line, const char *text);

// entered and left stand around each call of a backend, so that the end of the process can be explained.
void entered(TRITONBACKEND_Backend *backend, TRITONBACKEND_Model *model, const char *function);
void left(void);
void watch_signals(void);

// alive gives an error where a request has ended.
Error *alive(TRITONBACKEND_Request *request, const char *function);

// All below are called with the instance's lock held.
void batch_leave(th_batch *batch);           // one user less
void batch_post(th_batch *batch, event *e);  // an event for the worker
void finish(TRITONBACKEND_Request *r, event *e); // the final event of a request
void let_go(TRITONBACKEND_Request *r);       // one holder less
event *event_of(TRITONBACKEND_Request *r);   // an empty event

Error *backend_open(const char *name, const char *library, const char *config, TRITONBACKEND_Backend **backend);
Error *model_new(TRITONBACKEND_Backend *backend, const th_model_spec *spec, TRITONBACKEND_Model **model);
Error *model_free(TRITONBACKEND_Model *model);
Error *instance_new(TRITONBACKEND_Model *model, const th_instance_spec *spec, TRITONBACKEND_ModelInstance **instance);
Error *instance_free(TRITONBACKEND_ModelInstance *instance);
th_batch *batch_new(TRITONBACKEND_ModelInstance *instance, uint32_t requests, uintptr_t tag, void *slab, uint64_t room);
void batch_request(th_batch *batch, const th_request *request);
void batch_input(th_batch *batch, const th_input *input);
void batch_parameter(th_batch *batch, const th_parameter *parameter);
Error *batch_execute(th_batch *batch);
void batch_cancel(th_batch *batch, uint32_t request);
void batch_keep(th_batch *batch);
th_event *batch_events(th_batch *batch);
bool batch_open(th_batch *batch);
void batch_free(th_batch *batch);
th_event *instance_wait(TRITONBACKEND_ModelInstance *instance);
void instance_stop(TRITONBACKEND_ModelInstance *instance);
void event_free(th_event *event);
void events_free(th_event *first);
void response_end(TRITONBACKEND_Response *response);
th_metric *metric_wait(void);
void metric_free(th_metric *metric);
th_call *call_wait(void);
bool call_cancelled(th_call *call);
void call_answer(th_call *call, const th_answer *answer);
void call_end(th_call *call, int code, const char *text, bool yes);
