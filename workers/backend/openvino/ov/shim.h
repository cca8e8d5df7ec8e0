// The C side of package ov: what would be several calls from Go is one function here.
#ifndef SLUICE_OV_SHIM_H
#define SLUICE_OV_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

#define SLO_MAX_RANK 32
#define SLO_TEXT 4096  // bytes of an error's text
#define SLO_MAX_PROPERTIES 16

// slo_error is why a call failed: a status of OpenVINO's, or SLO_OURS.
typedef struct slo_error {
  int code;
  char text[SLO_TEXT];
} slo_error;

enum { SLO_OURS = -1000 };

// slo_port is what a model declares of an input or output.
typedef struct slo_port {
  char *name;  // malloc'ed; NULL: it has none
  int type;    // of the enum in api.h, or another number of OpenVINO's
  int rank;    // -1: unknown
  slo_dimension dims[SLO_MAX_RANK];
} slo_port;

// slo_tensor is an input or output of a run.
typedef struct slo_tensor {
  size_t index;
  int32_t type;
  int32_t rank;
  int64_t dims[SLO_MAX_RANK];
  void *data;    // of outputs NULL: OpenVINO has memory of its own, which this is after the run
  size_t bytes;  // of an output, after the run
  void *own;     // the library's object, until slo_release
} slo_tensor;

// Each of these returns 0, or fills e and returns its code.
int slo_open(const char *path, slo_error *e);
int slo_core(void **core, char version[64], slo_error *e);
int slo_read(void *core, const char *path, void **model, slo_error *e);
void slo_model_free(void *model);
int slo_count(void *model, size_t *inputs, size_t *outputs, slo_error *e);
int slo_describe(void *model, int output, size_t index, slo_port *to, slo_error *e);
// slo_reshape gives inputs other shapes: rank and dims of each port count.
int slo_reshape(void *model, const size_t *indices, const slo_port *shapes, size_t n, slo_error *e);
int slo_compile(void *core, void *model, const char *device, const char *const *properties, size_t n, void **compiled, slo_error *e);
void slo_compiled_free(void *compiled);
int slo_request(void *compiled, void **request, slo_error *e);
void slo_request_free(void *request);
// slo_run infers. Inputs and outputs with data are read and written where they lie. Outputs without are found by it.
int slo_run(void *request, slo_tensor *in, size_t inputs, slo_tensor *out, size_t outputs, slo_error *e);
// slo_release frees what a run has left in outputs; their memory is gone.
void slo_release(slo_tensor *out, size_t outputs);
int slo_cancel(void *request, slo_error *e);

#endif
