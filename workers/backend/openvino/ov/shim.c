//go:build cgo

#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTER(result, name, parameters) result(*name) parameters;
static struct {
  SLO_FUNCTIONS(POINTER)
} ov;  // filled once, by slo_open

static int fail(slo_error *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(slo_error *e, int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(e->text, sizeof e->text, format, args);
  va_end(args);
  return e->code = code;
}

// check fills e where a status is none of success. The library's last error is its thread's.
static int check(int status, slo_error *e) {
  if (status == 0) return 0;
  const char *said = ov.get_last_err_msg();
  if (said == NULL || *said == 0) return fail(e, status, "%s", ov.get_error_info(status));
  fail(e, status, "%s", said);
  ov.free(said);
  return status;
}

int slo_open(const char *path, slo_error *e) {
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (h == NULL) return fail(e, SLO_OURS, "%s", dlerror());
#define FIND(result, name, parameters)                                                \
  *(void **)&ov.name = dlsym(h, "ov_" #name);                                         \
  if (ov.name == NULL) return fail(e, SLO_OURS, "it has no function ov_%s", #name);
  SLO_FUNCTIONS(FIND)
  return 0;
}

// A thread that makes the core.
typedef struct {
  void **core;
  slo_error *e;
} making;

// make makes the core, and has it load its plugin for the CPU.
static void *make(void *p) {
  making *m = p;
  char *name;
  m->e->code = 0;
  if (check(ov.core_create(m->core), m->e) != 0 || check(ov.core_get_property(*m->core, "CPU", "FULL_DEVICE_NAME", &name), m->e) != 0) return NULL;
  ov.free(name);
  return NULL;
}

int slo_core(void **core, char version[64], slo_error *e) {
  slo_version v = {0};
  if (check(ov.get_openvino_version(&v), e) != 0) return e->code;
  snprintf(version, 64, "%s", v.build ? v.build : "");
  ov.version_free(&v);
  // The plugin replaces the signal stack of the thread that first uses it by one that is too small for Go's handlers, and that goes
  // with the core. So a thread of its own uses it first, and ends.
  pthread_t thread;
  making m = {core, e};
  if (pthread_create(&thread, NULL, make, &m) != 0) return fail(e, SLO_OURS, "there is no thread to start it on");
  pthread_join(thread, NULL);
  return e->code;
}

int slo_read(void *core, const char *path, void **model, slo_error *e) {
  return check(ov.core_read_model(core, path, NULL, model), e);
}

void slo_model_free(void *model) { ov.model_free(model); }

int slo_count(void *model, size_t *inputs, size_t *outputs, slo_error *e) {
  if (check(ov.model_inputs_size(model, inputs), e) != 0) return e->code;
  return check(ov.model_outputs_size(model, outputs), e);
}

static int describe(void *port, slo_port *to, slo_error *e) {
  char *name = NULL;
  slo_partial shape = {0};
  to->name = NULL;
  if (ov.port_get_any_name(port, &name) == 0 && name != NULL) { // else it has no name
    to->name = strdup(name);
    ov.free(name);
  }
  if (check(ov.port_get_element_type(port, &to->type), e) != 0 || check(ov.port_get_partial_shape(port, &shape), e) != 0) return e->code;
  to->rank = shape.rank.min == shape.rank.max ? (int)shape.rank.max : -1;
  if (to->rank > SLO_MAX_RANK)
    fail(e, SLO_OURS, "a tensor has %d dimensions", to->rank);
  else
    for (int i = 0; i < to->rank; i++) to->dims[i] = shape.dims[i];
  ov.partial_shape_free(&shape);
  return e->code;
}

int slo_describe(void *model, int output, size_t index, slo_port *to, slo_error *e) {
  void *port;
  e->code = 0;
  if (check(output ? ov.model_const_output_by_index(model, index, &port) : ov.model_const_input_by_index(model, index, &port), e) != 0)
    return e->code;
  describe(port, to, e);
  ov.output_const_port_free(port);
  return e->code;
}

int slo_reshape(void *model, const size_t *indices, const slo_port *shapes, size_t n, slo_error *e) {
  slo_partial *partials = calloc(n + 1, sizeof *partials);
  if (partials == NULL) return fail(e, SLO_OURS, "there is no memory");
  for (size_t i = 0; i < n; i++) {
    partials[i].rank.min = partials[i].rank.max = shapes[i].rank;
    partials[i].dims = (slo_dimension *)shapes[i].dims;
  }
  int status = check(ov.model_reshape_by_port_indexes(model, indices, partials, n), e);
  free(partials);
  return status;
}

int slo_compile(void *core, void *model, const char *device, const char *const *p, size_t n, void **compiled, slo_error *e) {
  const char *a[2 * SLO_MAX_PROPERTIES] = {0};
  if (n > sizeof a / sizeof *a) return fail(e, SLO_OURS, "%zu properties", n / 2);
  for (size_t i = 0; i < n; i++) a[i] = p[i];
  // It reads as many of what follows as the count says.
  return check(ov.core_compile_model(core, model, device, n, compiled, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                                     a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], a[24],
                                     a[25], a[26], a[27], a[28], a[29], a[30], a[31]),
               e);
}

void slo_compiled_free(void *compiled) { ov.compiled_model_free(compiled); }

int slo_request(void *compiled, void **request, slo_error *e) {
  return check(ov.compiled_model_create_infer_request(compiled, request), e);
}

void slo_request_free(void *request) { ov.infer_request_free(request); }

// bind makes a tensor of the library's over memory and sets it. The request keeps what it needs of it.
static int bind(void *request, slo_tensor *t, int (*set)(void *, size_t, const void *), slo_error *e) {
  static char nothing[64];
  void *tensor;
  slo_shape shape = {t->rank, t->dims};
  if (check(ov.tensor_create_from_host_ptr(t->type, shape, t->data ? t->data : nothing, &tensor), e) != 0) return e->code;
  int status = check(set(request, t->index, tensor), e);
  ov.tensor_free(tensor);
  return status;
}

// find looks where an output is that the library has allocated.
static int find(void *request, slo_tensor *t, slo_error *e) {
  slo_shape shape = {0};
  if (check(ov.infer_request_get_output_tensor_by_index(request, t->index, &t->own), e) != 0) return e->code;
  if (check(ov.tensor_get_element_type(t->own, &t->type), e) != 0 || check(ov.tensor_get_byte_size(t->own, &t->bytes), e) != 0 ||
      check(ov.tensor_get_shape(t->own, &shape), e) != 0)
    return e->code;
  if (shape.rank > SLO_MAX_RANK) fail(e, SLO_OURS, "an output has %d dimensions", (int)shape.rank);
  t->rank = shape.rank > SLO_MAX_RANK ? 0 : (int32_t)shape.rank;
  for (int i = 0; i < t->rank; i++) t->dims[i] = shape.dims[i];
  ov.shape_free(&shape);
  if (e->code != 0 || t->bytes == 0) return e->code;
  return check(ov.tensor_data(t->own, &t->data), e);
}

int slo_run(void *request, slo_tensor *in, size_t inputs, slo_tensor *out, size_t outputs, slo_error *e) {
  e->code = 0;
  for (size_t i = 0; i < inputs; i++)
    if (bind(request, &in[i], ov.infer_request_set_input_tensor_by_index, e) != 0) return e->code;
  for (size_t i = 0; i < outputs; i++)
    if (out[i].data != NULL && bind(request, &out[i], ov.infer_request_set_output_tensor_by_index, e) != 0) return e->code;
  if (check(ov.infer_request_infer(request), e) != 0) return e->code;
  for (size_t i = 0; i < outputs; i++)
    if (out[i].data == NULL && find(request, &out[i], e) != 0) return e->code;
  return 0;
}

void slo_release(slo_tensor *out, size_t outputs) {
  for (size_t i = 0; i < outputs; i++)
    if (out[i].own != NULL) {
      ov.tensor_free(out[i].own);
      out[i].own = NULL;
    }
}

int slo_cancel(void *request, slo_error *e) { return check(ov.infer_request_cancel(request), e); }
