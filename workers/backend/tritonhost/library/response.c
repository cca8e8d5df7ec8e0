// Answers: responses and the factories that make them, their outputs, and their sending.
#include "private.h"

// ended keeps the last responses that were sent, so that a second use of one is found.
enum { ended_least = 256 };
static pthread_mutex_t ended_lock = PTHREAD_MUTEX_INITIALIZER;
static TRITONBACKEND_Response *ended, **ended_last = &ended;
static int ended_count;

// free_outputs gives back what an answer's outputs lie in.
static void free_outputs(TRITONBACKEND_Response *p) {
  for (uint32_t i = 0; i < p->output_count; i++) {
    if (p->outputs[i]->from_malloc) free(p->outputs[i]->memory);
  }
  give_back(p->memory);
  p->memory = NULL;
  p->outputs = NULL;
  p->output_count = 0;
}

void response_end(TRITONBACKEND_Response *p) {
  free_outputs(p);
  pthread_mutex_lock(&ended_lock);
  p->next = NULL;
  *ended_last = p;
  ended_last = &p->next;
  TRITONBACKEND_Response *oldest = NULL;
  if (++ended_count > ended_least) {
    oldest = ended;
    ended = oldest->next;
    ended_count--;
  }
  pthread_mutex_unlock(&ended_lock);
  free(oldest);
}

static Error *hold(TRITONBACKEND_Request *r) {
  TRITONBACKEND_ModelInstance *in = r->batch->instance;
  Error *error = NULL;
  pthread_mutex_lock(&in->lock);
  if (r->final) {
    error = fault("backend '%s' wants to answer a request of model '%s' that has its final answer", in->model->backend->name,
                  in->model->spec.name);
  } else {
    r->holders++;
    r->batch->users++;
  }
  pthread_mutex_unlock(&in->lock);
  return error;
}

static Error *respond(TRITONBACKEND_Response **response, TRITONBACKEND_Request *r) {
  *response = NULL;
  Error *error = hold(r);
  if (error != NULL) return error;
  TRITONBACKEND_Response *p = grown(sizeof *p);
  p->magic = MAGIC_RESPONSE;
  p->request = r;
  TRITONBACKEND_Model *m = r->batch->instance->model;
  p->outputs = take(&p->memory, (m->spec.output_count + m->spec.state_count) * sizeof *p->outputs);
  *response = p;
  return NULL;
}

Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *r) {
  Error *error = alive(r, __func__);
  return error != NULL ? error : respond(response, r);
}

static Error *whole(TRITONBACKEND_ResponseFactory *f, const char *function) {
  if (f != NULL && f->magic == MAGIC_FACTORY) return NULL;
  return fault("%s was called with a response factory that was deleted, or is none", function);
}

Error *TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory **factory, TRITONBACKEND_Request *r) {
  Error *error = alive(r, __func__);
  if (error == NULL) error = hold(r);
  if (error != NULL) return error;
  TRITONBACKEND_ResponseFactory *f = grown(sizeof *f);
  f->magic = MAGIC_FACTORY;
  f->request = r;
  *factory = f;
  return NULL;
}

Error *TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *f) {
  if (f == NULL) return NULL;
  Error *error = whole(f, __func__);
  if (error != NULL) return error;
  TRITONBACKEND_ModelInstance *in = f->request->batch->instance;
  pthread_mutex_lock(&in->lock);
  let_go(f->request);
  pthread_mutex_unlock(&in->lock);
  f->magic = 0;
  free(f);
  return NULL;
}

Error *TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response **response, TRITONBACKEND_ResponseFactory *f) {
  Error *error = whole(f, __func__);
  return error != NULL ? error : respond(response, f->request);
}

Error *TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory *f, bool *cancelled) {
  Error *error = whole(f, __func__);
  if (error == NULL) *cancelled = __atomic_load_n(&f->request->cancelled, __ATOMIC_RELAXED);
  return error;
}

// twice tells of an answer behind the last one; the instance's lock is held.
static Error *twice(TRITONBACKEND_Request *r) {
  TRITONBACKEND_Model *m = r->batch->instance->model;
  return fault("backend '%s' answered a request of model '%s' again after its final answer; the answer is dropped",
               m->backend->name, m->spec.name);
}

// answer takes an event to its request; the instance's lock is held. After an error the event is still the caller's.
static Error *answer(TRITONBACKEND_Request *r, event *e, bool final) {
  if (r->final) return twice(r);
  if (r->early != NULL) { // of a model with one answer, which it has
    if (e->public.answer) return twice(r);
    if (!final) return NULL;
    event *had = r->early;
    r->early = NULL;
    finish(r, had);
    event_free(&e->public);
    return NULL;
  }
  if (final) {
    finish(r, e);
  } else if (!e->public.answer) {
    event_free(&e->public); // it says nothing
  } else if (!r->batch->instance->model->spec.decoupled) {
    r->early = e;
  } else {
    batch_post(r->batch, e);
  }
  return NULL;
}

Error *TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory *f, const uint32_t flags) {
  Error *error = whole(f, __func__);
  if (error != NULL) return error;
  TRITONBACKEND_Request *r = f->request;
  TRITONBACKEND_ModelInstance *in = r->batch->instance;
  pthread_mutex_lock(&in->lock);
  event *e = event_of(r);
  error = answer(r, e, (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0);
  if (error != NULL) event_free(&e->public);
  pthread_mutex_unlock(&in->lock);
  return error;
}

static Error *open_response(TRITONBACKEND_Response *p, const char *function) {
  if (p != NULL && p->magic == MAGIC_RESPONSE) return NULL;
  return fault("%s was called with a response that was sent or deleted, or is none", function);
}

Error *TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response *p) {
  if (p == NULL) return NULL;
  Error *error = open_response(p, __func__);
  if (error != NULL) return error;
  TRITONBACKEND_Request *r = p->request;
  TRITONBACKEND_ModelInstance *in = r->batch->instance;
  p->magic = 0;
  response_end(p);
  pthread_mutex_lock(&in->lock);
  let_go(r);
  pthread_mutex_unlock(&in->lock);
  return NULL;
}

static Error *parameter(TRITONBACKEND_Response *p, th_parameter said, const char *function) {
  Error *error = open_response(p, function);
  if (error != NULL) return error;
  if (p->parameter_count == p->parameter_room) {
    p->parameter_room = p->parameter_room == 0 ? 4 : 2 * p->parameter_room;
    th_parameter *more = take(&p->memory, p->parameter_room * sizeof *more);
    if (p->parameter_count > 0) memcpy(more, p->parameters, p->parameter_count * sizeof *more);
    p->parameters = more;
  }
  said.name = take_text(&p->memory, said.name, strlen(said.name));
  if (said.text != NULL) said.text = take_text(&p->memory, said.text, said.size);
  p->parameters[p->parameter_count++] = said;
  return NULL;
}

Error *TRITONBACKEND_ResponseSetStringParameter(TRITONBACKEND_Response *p, const char *name, const char *value) {
  th_parameter said = {.name = name, .type = TRITONSERVER_PARAMETER_STRING, .text = value, .size = strlen(value)};
  return parameter(p, said, __func__);
}

Error *TRITONBACKEND_ResponseSetIntParameter(TRITONBACKEND_Response *p, const char *name, const int64_t value) {
  th_parameter said = {.name = name, .type = TRITONSERVER_PARAMETER_INT, .integer = value};
  return parameter(p, said, __func__);
}

Error *TRITONBACKEND_ResponseSetBoolParameter(TRITONBACKEND_Response *p, const char *name, const bool value) {
  th_parameter said = {.name = name, .type = TRITONSERVER_PARAMETER_BOOL, .integer = value};
  return parameter(p, said, __func__);
}

Error *TRITONBACKEND_ResponseSetDoubleParameter(TRITONBACKEND_Response *p, const char *name, const double value) {
  th_parameter said = {.name = name, .type = TRITONSERVER_PARAMETER_DOUBLE, .number = value};
  return parameter(p, said, __func__);
}

// named is the config's own text of an output's or a state's name; NULL: the config has none of it.
static const char *named(TRITONBACKEND_Model *m, const char *name) {
  for (uint32_t i = 0; i < m->spec.output_count; i++) {
    if (strcmp(m->outputs[i].name, name) == 0) return m->outputs[i].name;
  }
  for (uint32_t i = 0; i < m->spec.state_count; i++) {
    if (strcmp(m->states[i].name, name) == 0) return m->states[i].name;
  }
  return NULL;
}

Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *p, TRITONBACKEND_Output **output, const char *name,
                                    const TRITONSERVER_DataType datatype, const int64_t *shape, const uint32_t rank) {
  *output = NULL;
  Error *error = open_response(p, __func__);
  if (error != NULL) return error;
  TRITONBACKEND_Model *m = p->request->batch->instance->model;
  const char *own = named(m, name);
  if (own == NULL)
    return errorf(TRITONSERVER_ERROR_INVALID_ARG, "unexpected inference output '%s' for model '%s'", name, m->spec.name);
  for (uint32_t i = 0; i < p->output_count; i++) {
    if (p->outputs[i]->said.name == own)
      return errorf(TRITONSERVER_ERROR_ALREADY_EXISTS, "response already has an output '%s'", name);
  }
  TRITONBACKEND_Output *o = take(&p->memory, sizeof *o);
  o->magic = MAGIC_OUTPUT;
  o->response = p;
  o->said.name = own;
  o->said.datatype = datatype;
  o->said.rank = rank;
  int64_t *dims = take(&p->memory, rank * sizeof *dims);
  if (rank > 0) memcpy(dims, shape, rank * sizeof *dims);
  o->said.shape = dims;
  p->outputs[p->output_count++] = o;
  *output = o;
  return NULL;
}

// from_slab takes memory for an output out of the batch's; NULL where there is not enough.
static char *from_slab(th_batch *b, uint64_t bytes) {
  pthread_mutex_lock(&b->instance->lock);
  char *at = NULL;
  uint64_t need = (bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
  if (b->slab != NULL && bytes <= b->slab_room && need <= b->slab_room) {
    at = b->slab;
    b->slab += need;
    b->slab_room -= need;
  }
  pthread_mutex_unlock(&b->instance->lock);
  return at;
}

Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *o, void **buffer, const uint64_t bytes,
                                  TRITONSERVER_MemoryType *type, int64_t *device) {
  *buffer = NULL;
  if (o->magic != MAGIC_OUTPUT || o->response->magic != MAGIC_RESPONSE)
    return fault("%s was called with an output of a response that was sent or deleted", __func__);
  if (o->asked)
    return errorf(TRITONSERVER_ERROR_ALREADY_EXISTS, "allocated buffer for output '%s' already exists", o->said.name);
  o->memory = from_slab(o->response->request->batch, bytes);
  if (o->memory == NULL) {
    void *own = NULL;
    if (bytes > SIZE_MAX - 2 * GUARD || posix_memalign(&own, ALIGN, bytes + GUARD) != 0)
      return errorf(TRITONSERVER_ERROR_UNAVAILABLE, "there is no memory for %llu bytes of output '%s'",
                    (unsigned long long)bytes, o->said.name);
    o->memory = own;
    o->from_malloc = true;
  }
  memset(o->memory + bytes, GUARD_BYTE, GUARD);
  o->asked = true;
  o->said.data = o->memory;
  o->said.bytes = bytes;
  o->attributes.bytes = bytes;
  *buffer = o->memory;
  *type = TRITONSERVER_MEMORY_CPU;
  *device = 0;
  return NULL;
}

Error *TRITONBACKEND_OutputBufferAttributes(TRITONBACKEND_Output *o, TRITONSERVER_BufferAttributes **attributes) {
  *attributes = &o->attributes;
  return NULL;
}

// intact ends the process where a backend wrote past an output: what lies behind it may be anybody's.
static void intact(TRITONBACKEND_Response *p) {
  TRITONBACKEND_Model *m = p->request->batch->instance->model;
  for (uint32_t i = 0; i < p->output_count; i++) {
    TRITONBACKEND_Output *o = p->outputs[i];
    for (uint64_t k = 0; o->asked && k < GUARD; k++) {
      if (o->memory[o->said.bytes + k] != GUARD_BYTE)
        die("backend '%s' wrote past the end of output '%s' (%llu bytes) of model '%s'; its process ends", m->backend->name,
            o->said.name, (unsigned long long)o->said.bytes, m->spec.name);
    }
  }
}

Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *p, const uint32_t flags, Error *failed) {
  Error *error = open_response(p, __func__);
  if (error != NULL) return error;
  intact(p);
  TRITONBACKEND_Request *r = p->request;
  TRITONBACKEND_ModelInstance *in = r->batch->instance;
  p->magic = 0;
  event *e = event_of(r);
  e->response = p;
  e->public.answer = true;
  if (failed != NULL) {
    e->public.error = TRITONSERVER_ErrorNew(failed->code, failed->text);
  } else {
    th_output *all = take(&p->memory, p->output_count * sizeof *all);
    for (uint32_t i = 0; i < p->output_count; i++) all[i] = p->outputs[i]->said;
    e->public.outputs = all;
    e->public.output_count = p->output_count;
  }
  e->public.parameters = p->parameters;
  e->public.parameter_count = p->parameter_count;
  pthread_mutex_lock(&in->lock);
  error = answer(r, e, (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0);
  if (error != NULL) event_free(&e->public);
  let_go(r);
  pthread_mutex_unlock(&in->lock);
  return error;
}
