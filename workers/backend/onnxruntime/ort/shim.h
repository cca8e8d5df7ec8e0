// The C side of package ort: what would be several cgo calls is one function here.
#ifndef SLUICE_ORT_SHIM_H
#define SLUICE_ORT_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include "onnxruntime_c_api.h"

#define SL_MAX_RANK 32
#define SL_ERROR_TEXT 2048

// Codes of our own; ONNX Runtime's are positive (OrtErrorCode), 0 is success.
enum {
  SL_ERR_LIBRARY = -1,  // the shared library can't be used
  SL_ERR_STRING = -2,   // a BYTES tensor whose lengths don't fit its bytes
  SL_ERR_TYPE = -3,     // a value that is no dense tensor, or has too many dimensions
  SL_ERR_MEMORY = -4,   // out of memory
};

typedef struct sl_error {
  int code;
  char text[SL_ERROR_TEXT];
} sl_error;

typedef struct sl_lib {
  const OrtApi *api;
  uint32_t api_version;  // asked for: the header's or the library's, the lower one
  OrtEnv *env;
  OrtMemoryInfo *cpu;
  OrtAllocator *allocator;  // ONNX Runtime's own, never released
  const char *version;      // static text of the library
} sl_lib;

// sl_info is what a model file declares of a tensor. Names are malloc'ed.
typedef struct sl_info {
  char *name;
  char *symbols[SL_MAX_RANK];  // names of symbolic dimensions; NULL for others
  int onnx_type;               // ONNXType
  int type;                    // ONNXTensorElementDataType
  int rank;                    // -1: unknown
  int64_t dims[SL_MAX_RANK];
} sl_info;

// sl_tensor is one input or output of a call.
typedef struct sl_tensor {
  int32_t index;  // in the session's names
  int32_t type;
  int32_t rank;
  int64_t dims[SL_MAX_RANK];
  void *data;     // outputs: NULL lets ONNX Runtime allocate, and is set after the run
  size_t bytes;   // of data; for string outputs the sum of the strings' lengths
  size_t count;   // elements; set for outputs that ONNX Runtime allocated
  OrtValue *value;  // an output that ONNX Runtime allocated, until sl_release_outputs
} sl_tensor;

typedef struct sl_call {
  const sl_lib *lib;
  OrtSession *session;
  OrtRunOptions *options;
  int n_in, n_out;    // used in this run
  sl_tensor *in, *out;
  const char *const *in_names, *const *out_names;  // of the session
  const char **names;   // scratch: max_in + max_out
  OrtValue **values;    // scratch: max_in + max_out
  int max_in, max_out;
  sl_error error;
} sl_call;

enum { SL_INPUT, SL_OUTPUT, SL_INITIALIZER };
enum { SL_GRAPH_LEVEL, SL_PARALLEL, SL_INTRA, SL_INTER, SL_ARENA, SL_PATTERN, SL_GLOBAL_POOL };

// sl_fail and sl_check fill e and return its code; sl_check releases the status.
int sl_fail(sl_error *e, int code, const char *text);
int sl_check(const sl_lib *lib, OrtStatus *st, sl_error *e);

int sl_open(const char *path, int log_fd, int global_pool, int intra, int inter, sl_lib **out, sl_error *e);
void sl_close(sl_lib *lib, int log_fd);
int sl_providers(const sl_lib *lib, char ***names, int *n, sl_error *e);
void sl_release_providers(const sl_lib *lib, char **names, int n);

int sl_options_new(const sl_lib *lib, OrtSessionOptions **out, sl_error *e);
void sl_options_free(const sl_lib *lib, OrtSessionOptions *o);
int sl_options_set(const sl_lib *lib, OrtSessionOptions *o, int what, int value, sl_error *e);
int sl_options_entry(const sl_lib *lib, OrtSessionOptions *o, const char *key, const char *value, sl_error *e);
int sl_options_cuda(const sl_lib *lib, OrtSessionOptions *o, const char *const *keys, const char *const *values, size_t n, sl_error *e);
int sl_options_tensorrt(const sl_lib *lib, OrtSessionOptions *o, const char *const *keys, const char *const *values, size_t n, sl_error *e);
int sl_options_library(const sl_lib *lib, OrtSessionOptions *o, const char *path, sl_error *e);
void sl_options_cancel(const sl_lib *lib, OrtSessionOptions *o);

int sl_session(const sl_lib *lib, const char *path, const OrtSessionOptions *o, OrtSession **out, sl_error *e);
void sl_session_free(const sl_lib *lib, OrtSession *s);
int sl_count(const sl_lib *lib, const OrtSession *s, int kind, size_t *n, sl_error *e);
int sl_describe(const sl_lib *lib, const OrtSession *s, int kind, size_t index, sl_info *info, sl_error *e);
void sl_info_free(sl_info *info);

// sl_call_new takes the names over: arrays of max_in and max_out malloc'ed strings that
// live as long as the session's owner keeps them.
sl_call *sl_call_new(const sl_lib *lib, OrtSession *s, const char *const *in_names, int max_in,
                     const char *const *out_names, int max_out, sl_error *e);
void sl_call_free(sl_call *c);
int sl_call_entry(sl_call *c, const char *key, const char *value, sl_error *e);
int sl_terminate(sl_call *c, int on);

// sl_run runs c's session: inputs are wrapped where they lie, outputs with data are
// written there, others are left in value until sl_release_outputs.
int sl_run(sl_call *c);
// sl_repeat is sl_run n times; outputs that ONNX Runtime allocated are those of the last.
int sl_repeat(sl_call *c, int n);
void sl_release_outputs(sl_call *c);
// sl_strings writes a string output in the protocol's form to to, which has
// 4*count+bytes bytes.
int sl_strings(sl_call *c, int output, void *to);

#endif
