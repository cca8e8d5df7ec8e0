// Batches between the worker and a backend: their making, their execution, and what becomes of their requests.
#include "private.h"

// idle_least is how many batches that have ended an instance keeps before it uses the oldest again.
enum { idle_least = 32 };

// clear makes a batch's memory new; one chunk is kept.
static void clear(th_batch *b) {
  if (b->memory != NULL && (b->memory->next != NULL || b->memory->size > 65536)) {
    give_back(b->memory);
    b->memory = NULL;
  } else if (b->memory != NULL) {
    memset(b->memory->data, 0, b->memory->used);
    b->memory->used = 0;
  }
}

th_batch *batch_new(TRITONBACKEND_ModelInstance *in, uint32_t requests, uintptr_t tag, void *slab, uint64_t room) {
  pthread_mutex_lock(&in->lock);
  th_batch *b = NULL;
  if (in->idle_count >= idle_least) {
    b = in->idle;
    in->idle = b->next;
    if (in->idle == NULL) in->idle_last = &in->idle;
    in->idle_count--;
  }
  in->busy++;
  pthread_mutex_unlock(&in->lock);
  if (b == NULL) b = grown(sizeof *b);
  chunk *memory = b->memory;
  memset(b, 0, sizeof *b);
  b->memory = memory;
  clear(b);
  b->instance = in;
  b->tag = tag;
  b->users = 1;
  b->last = &b->first;
  b->slab = slab;
  b->slab_room = room;
  b->room = requests;
  b->requests = take(&b->memory, requests * sizeof *b->requests);
  b->list = take(&b->memory, requests * sizeof *b->list);
  return b;
}

void batch_request(th_batch *b, const th_request *said) {
  TRITONBACKEND_Model *m = b->instance->model;
  TRITONBACKEND_Request *r = &b->requests[b->count];
  r->magic = MAGIC_REQUEST;
  r->index = b->count;
  r->batch = b;
  r->said = *said;
  r->said.id = take_text(&b->memory, said->id, strlen(said->id));
  r->said.correlation_text = take_text(&b->memory, said->correlation_text, strlen(said->correlation_text));
  r->said.wanted = NULL;
  r->wanted = take(&b->memory, m->spec.output_count * sizeof *r->wanted);
  for (uint32_t i = 0; i < m->spec.output_count; i++) {
    if (said->wanted[i]) r->wanted[r->wanted_count++] = m->outputs[i].name;
  }
  if (m->spec.state_count > 0) r->states = take(&b->memory, m->spec.state_count * sizeof *r->states);
  b->list[b->count++] = r;
  b->open++;
}

// room makes an array longer by one.
static void *room(th_batch *b, void *array, uint32_t count, uint32_t *capacity, size_t size) {
  if (count < *capacity) return array;
  *capacity = *capacity == 0 ? 4 : 2 * *capacity;
  void *more = take(&b->memory, *capacity * size);
  if (count > 0) memcpy(more, array, count * size);
  return more;
}

void batch_input(th_batch *b, const th_input *said) {
  TRITONBACKEND_Request *r = b->list[b->count - 1];
  r->inputs = room(b, r->inputs, r->input_count, &r->input_room, sizeof *r->inputs);
  TRITONBACKEND_Input *in = &r->inputs[r->input_count++];
  in->said = *said;
  int64_t *shape = take(&b->memory, said->rank * sizeof *shape);
  if (said->rank > 0) memcpy(shape, said->shape, said->rank * sizeof *shape);
  in->said.shape = shape;
  in->attributes.bytes = said->bytes;
}

void batch_parameter(th_batch *b, const th_parameter *said) {
  TRITONBACKEND_Request *r = b->list[b->count - 1];
  r->parameters = room(b, r->parameters, r->parameter_count, &r->parameter_room, sizeof *r->parameters);
  th_parameter *p = &r->parameters[r->parameter_count++];
  *p = *said;
  p->name = take_text(&b->memory, said->name, strlen(said->name));
  if (said->text != NULL) p->text = take_text(&b->memory, said->text, said->size);
}

// dropped frees an event that nobody will read.
static void dropped(event *e) {
  if (e != NULL) event_free(&e->public);
}

Error *batch_execute(th_batch *b) {
  TRITONBACKEND_ModelInstance *in = b->instance;
  TRITONBACKEND_Model *m = in->model;
  bool alone = m->backend->policy == TRITONBACKEND_EXECUTION_DEVICE_BLOCKING && in->kind == TRITONSERVER_INSTANCEGROUPKIND_GPU;
  pthread_mutex_t *device = &m->device[in->device >= 0 && in->device < 16 ? in->device + 1 : 0];
  if (alone) pthread_mutex_lock(device);
  entered(m->backend, m, "TRITONBACKEND_ModelInstanceExecute");
  Error *error = m->backend->call.execute(in, b->list, b->count);
  left();
  if (alone) pthread_mutex_unlock(device);
  if (error == NULL) return NULL;
  // The requests stayed the host's: what the backend did with them before is void.
  event *first = NULL, **last = &first;
  pthread_mutex_lock(&in->lock);
  for (uint32_t i = 0; i < b->count; i++) {
    TRITONBACKEND_Request *r = &b->requests[i];
    event *mine[] = {r->early, r->held};
    for (int k = 0; k < 2; k++) {
      if (mine[k] == NULL) continue;
      *last = mine[k];
      last = &mine[k]->next;
    }
    r->early = r->held = NULL;
    r->released = r->final = true;
  }
  if (!b->kept) {
    *last = b->first;
    b->first = NULL;
    b->last = &b->first;
  }
  b->open = 0;
  pthread_mutex_unlock(&in->lock);
  while (first != NULL) {
    event *next = first->next;
    dropped(first);
    first = next;
  }
  return error;
}

void batch_cancel(th_batch *b, uint32_t request) { __atomic_store_n(&b->requests[request].cancelled, true, __ATOMIC_RELAXED); }

event *event_of(TRITONBACKEND_Request *r) {
  event *e = grown(sizeof *e);
  e->public.batch = r->batch;
  e->public.tag = r->batch->tag;
  e->public.request = r->index;
  return e;
}

void batch_post(th_batch *b, event *e) {
  if (!b->kept) {
    *b->last = e;
    b->last = &e->next;
    return;
  }
  *b->instance->last = e;
  b->instance->last = &e->next;
  pthread_cond_signal(&b->instance->came);
}

// states_of puts the states that the backend has updated into the final event.
static void states_of(TRITONBACKEND_Request *r, event *e) {
  uint32_t count = r->batch->instance->model->spec.state_count, n = 0;
  if (count == 0 || e->public.error != NULL) return;
  th_output *all = take(&r->batch->memory, count * sizeof *all);
  for (uint32_t i = 0; i < count; i++) {
    if (r->states[i].magic == MAGIC_STATE && r->states[i].updated) all[n++] = r->states[i].value;
  }
  e->public.states = all;
  e->public.state_count = n;
}

void finish(TRITONBACKEND_Request *r, event *e) {
  e->public.final = true;
  r->final = true;
  states_of(r, e);
  if (!r->released) {
    r->held = e;
    return;
  }
  r->batch->open--;
  batch_post(r->batch, e);
}

// abandoned ends a request that nobody can answer any more.
static void abandoned(TRITONBACKEND_Request *r) {
  if (!r->released || r->final || r->holders > 0) return;
  event *e = r->early;
  r->early = NULL;
  if (e == NULL) {
    e = event_of(r);
    e->public.answer = true;
    e->public.error = errorf(TRITONSERVER_ERROR_INTERNAL, "backend '%s' released a request of model '%s' without an answer",
                             r->batch->instance->model->backend->name, r->batch->instance->model->spec.name);
  }
  finish(r, e);
}

void let_go(TRITONBACKEND_Request *r) {
  th_batch *b = r->batch;
  r->holders--;
  abandoned(r);
  batch_leave(b);
}

void batch_leave(th_batch *b) {
  TRITONBACKEND_ModelInstance *in = b->instance;
  if (--b->users > 0) return;
  for (uint32_t i = 0; i < b->count; i++) b->requests[i].magic = 0;
  b->next = NULL;
  *in->idle_last = b;
  in->idle_last = &b->next;
  in->idle_count++;
  in->busy--;
}

Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *r, uint32_t flags) {
  Error *error = alive(r, "TRITONBACKEND_RequestRelease");
  if (error != NULL) return error;
  th_batch *b = r->batch;
  TRITONBACKEND_ModelInstance *in = b->instance;
  bool again = (flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) != 0;
  if (again && !in->model->spec.iterative)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG,
                                 "Request release flag TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is only supported for models with iterative sequence");
  pthread_mutex_lock(&in->lock);
  r->released = true;
  if (r->held != NULL) {
    event *e = r->held;
    r->held = NULL;
    b->open--;
    batch_post(b, e);
  } else if (again && !r->final) {
    event *e = event_of(r);
    e->public.reschedule = true;
    finish(r, e);
  } else {
    abandoned(r);
  }
  pthread_mutex_unlock(&in->lock);
  return NULL;
}

void batch_keep(th_batch *b) {
  TRITONBACKEND_ModelInstance *in = b->instance;
  pthread_mutex_lock(&in->lock);
  b->kept = true;
  while (b->first != NULL) {
    event *e = b->first;
    b->first = e->next;
    e->next = NULL;
    batch_post(b, e);
  }
  b->last = &b->first;
  pthread_mutex_unlock(&in->lock);
}

th_event *batch_events(th_batch *b) {
  pthread_mutex_lock(&b->instance->lock);
  event *first = b->first;
  b->first = NULL;
  b->last = &b->first;
  pthread_mutex_unlock(&b->instance->lock);
  for (event *e = first; e != NULL; e = e->next) e->public.next = e->next != NULL ? &e->next->public : NULL;
  return first != NULL ? &first->public : NULL;
}

bool batch_open(th_batch *b) {
  pthread_mutex_lock(&b->instance->lock);
  bool open = b->open > 0 || b->first != NULL;
  pthread_mutex_unlock(&b->instance->lock);
  return open;
}

th_event *instance_wait(TRITONBACKEND_ModelInstance *in) {
  pthread_mutex_lock(&in->lock);
  while (in->first == NULL && !in->stopped) pthread_cond_wait(&in->came, &in->lock);
  event *e = in->first;
  if (e != NULL) {
    in->first = e->next;
    if (in->first == NULL) in->last = &in->first;
  }
  pthread_mutex_unlock(&in->lock);
  return e != NULL ? &e->public : NULL;
}

void instance_stop(TRITONBACKEND_ModelInstance *in) {
  pthread_mutex_lock(&in->lock);
  in->stopped = true;
  pthread_cond_broadcast(&in->came);
  pthread_mutex_unlock(&in->lock);
}

void event_free(th_event *public) {
  event *e = (event *)public;
  TRITONSERVER_ErrorDelete(e->public.error);
  if (e->response != NULL) response_end(e->response);
  free(e);
}

void events_free(th_event *first) {
  while (first != NULL) {
    th_event *next = first->next;
    event_free(first);
    first = next;
  }
}

void batch_free(th_batch *b) {
  TRITONBACKEND_ModelInstance *in = b->instance;
  pthread_mutex_lock(&in->lock);
  b->slab = NULL; // it is the worker's again
  b->slab_room = 0;
  batch_leave(b);
  pthread_mutex_unlock(&in->lock);
}
