//go:build onnxruntime

#include <stdlib.h>
#include <string.h>

#include "shim.h"

sl_call *sl_call_new(const sl_lib *lib, OrtSession *s, const char *const *in_names, int max_in,
                     const char *const *out_names, int max_out, sl_error *e) {
  sl_call *c = calloc(1, sizeof *c);
  if (c == NULL) {
    sl_fail(e, SL_ERR_MEMORY, "out of memory");
    return NULL;
  }
  size_t n = (size_t)max_in + (size_t)max_out + 1;
  c->lib = lib;
  c->session = s;
  c->in_names = in_names, c->out_names = out_names;
  c->max_in = max_in, c->max_out = max_out;
  c->in = calloc((size_t)max_in + 1, sizeof *c->in);
  c->out = calloc((size_t)max_out + 1, sizeof *c->out);
  c->names = calloc(n, sizeof *c->names);
  c->values = calloc(n, sizeof *c->values);
  if (!c->in || !c->out || !c->names || !c->values) {
    sl_fail(e, SL_ERR_MEMORY, "out of memory");
    sl_call_free(c);
    return NULL;
  }
  // What fails comes back as a status; a log line for each bad request would only repeat it.
  if (sl_check(lib, lib->api->CreateRunOptions(&c->options), e) ||
      sl_check(lib, lib->api->RunOptionsSetRunLogSeverityLevel(c->options, ORT_LOGGING_LEVEL_FATAL), e)) {
    sl_call_free(c);
    return NULL;
  }
  return c;
}

void sl_call_free(sl_call *c) {
  if (c->options) c->lib->api->ReleaseRunOptions(c->options);
  free(c->in);
  free(c->out);
  free(c->names);
  free(c->values);
  free(c);
}

int sl_call_entry(sl_call *c, const char *key, const char *value, sl_error *e) {
  return sl_check(c->lib, c->lib->api->AddRunConfigEntry(c->options, key, value), e);
}

int sl_terminate(sl_call *c, int on) {
  const OrtApi *a = c->lib->api;
  OrtStatus *st = on ? a->RunOptionsSetTerminate(c->options) : a->RunOptionsUnsetTerminate(c->options);
  if (st == NULL) return 0;
  int code = a->GetErrorCode(st);
  a->ReleaseStatus(st);
  return code;
}

static uint32_t length_at(const unsigned char *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

// string_value makes ONNX Runtime's strings of a BYTES tensor; t->count is how many
// elements its shape has.
static int string_value(sl_call *c, sl_tensor *t, OrtValue **out) {
  const OrtApi *a = c->lib->api;
  int rc = sl_check(c->lib, a->CreateTensorAsOrtValue(c->lib->allocator, t->dims, (size_t)t->rank,
                                                  ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, out), &c->error);
  const unsigned char *p = t->data;
  size_t left = t->bytes;
  for (size_t i = 0; rc == 0 && i < t->count; i++) {
    if (left < 4 || length_at(p) > left - 4)
      return sl_fail(&c->error, SL_ERR_STRING, "the data ends before its last element");
    size_t n = length_at(p);
    char *to = NULL;
    rc = sl_check(c->lib, a->GetResizedStringTensorElementBuffer(*out, i, n, &to), &c->error);
    if (rc == 0 && n > 0) memcpy(to, p + 4, n);
    p += 4 + n;
    left -= 4 + n;
  }
  if (rc == 0 && left != 0) return sl_fail(&c->error, SL_ERR_STRING, "the data goes on after its last element");
  return rc;
}

// take_output reads an output that ONNX Runtime allocated.
static int take_output(sl_call *c, sl_tensor *t) {
  const OrtApi *a = c->lib->api;
  if (t->value == NULL) return sl_fail(&c->error, SL_ERR_TYPE, "an output has no value");
  int tensor = 0;
  if (sl_check(c->lib, a->IsTensor(t->value, &tensor), &c->error)) return c->error.code;
  if (!tensor) return sl_fail(&c->error, SL_ERR_TYPE, "an output is no tensor");
  OrtTensorTypeAndShapeInfo *info = NULL;
  if (sl_check(c->lib, a->GetTensorTypeAndShape(t->value, &info), &c->error)) return c->error.code;
  enum ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  size_t rank = 0;
  int rc = sl_check(c->lib, a->GetTensorElementType(info, &type), &c->error);
  if (rc == 0) rc = sl_check(c->lib, a->GetDimensionsCount(info, &rank), &c->error);
  if (rc == 0 && rank > SL_MAX_RANK) rc = sl_fail(&c->error, SL_ERR_TYPE, "an output has more than 32 dimensions");
  if (rc == 0) rc = sl_check(c->lib, a->GetDimensions(info, t->dims, rank), &c->error);
  if (rc == 0) rc = sl_check(c->lib, a->GetTensorShapeElementCount(info, &t->count), &c->error);
  a->ReleaseTensorTypeAndShapeInfo(info);
  if (rc != 0) return rc;
  t->type = type;
  t->rank = (int32_t)rank;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING)
    return sl_check(c->lib, a->GetStringTensorDataLength(t->value, &t->bytes), &c->error);
  return sl_check(c->lib, a->GetTensorMutableData(t->value, &t->data), &c->error);
}

static int make_value(sl_call *c, sl_tensor *t, OrtValue **out) {
  return sl_check(c->lib, c->lib->api->CreateTensorWithDataAsOrtValue(c->lib->cpu, t->data, t->bytes, t->dims,
                                                                  (size_t)t->rank, (ONNXTensorElementDataType)t->type, out),
               &c->error);
}

int sl_run(sl_call *c) {
  const OrtApi *a = c->lib->api;
  const char **in_names = c->names, **out_names = c->names + c->max_in;
  OrtValue **in = c->values, **out = c->values + c->max_in;
  int rc = 0;
  c->error.code = 0;
  memset(c->values, 0, (size_t)(c->max_in + c->max_out) * sizeof *c->values);
  for (int i = 0; rc == 0 && i < c->n_in; i++) {
    sl_tensor *t = &c->in[i];
    in_names[i] = c->in_names[t->index];
    rc = t->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING ? string_value(c, t, &in[i]) : make_value(c, t, &in[i]);
  }
  for (int i = 0; rc == 0 && i < c->n_out; i++) {
    sl_tensor *t = &c->out[i];
    out_names[i] = c->out_names[t->index];
    t->value = NULL;
    if (t->data) rc = make_value(c, t, &out[i]);
  }
  if (rc == 0)
    rc = sl_check(c->lib, a->Run(c->session, c->options, in_names, (const OrtValue *const *)in, (size_t)c->n_in,
                              out_names, (size_t)c->n_out, out), &c->error);
  for (int i = 0; i < c->n_in; i++)
    if (in[i]) a->ReleaseValue(in[i]);
  for (int i = 0; i < c->n_out; i++) {
    sl_tensor *t = &c->out[i];
    if (out[i] == NULL) continue;
    if (t->data) a->ReleaseValue(out[i]);
    else t->value = out[i];
  }
  for (int i = 0; rc == 0 && i < c->n_out; i++)
    if (c->out[i].data == NULL) rc = take_output(c, &c->out[i]);
  if (rc != 0) sl_release_outputs(c);
  return rc;
}

int sl_repeat(sl_call *c, int n) {
  int rc = sl_run(c);
  for (int i = 1; rc == 0 && i < n; i++) {
    for (int k = 0; k < c->n_out; k++)
      if (c->out[k].value) c->out[k].data = NULL;
    sl_release_outputs(c);
    rc = sl_run(c);
  }
  return rc;
}

void sl_release_outputs(sl_call *c) {
  for (int i = 0; i < c->n_out; i++) {
    sl_tensor *t = &c->out[i];
    if (t->value) c->lib->api->ReleaseValue(t->value);
    t->value = NULL;
  }
}

// sl_strings lets ONNX Runtime write all strings to the end of to and then moves each to
// its place behind its length: element i moves down by 4*(count-i-1) bytes, so nothing
// unread is overwritten.
int sl_strings(sl_call *c, int output, void *to) {
  sl_tensor *t = &c->out[output];
  size_t n = t->count, total = t->bytes;
  if (n == 0) return 0;
  size_t *offsets = malloc(n * sizeof *offsets);
  if (offsets == NULL) return sl_fail(&c->error, SL_ERR_MEMORY, "out of memory");
  unsigned char *text = (unsigned char *)to + 4 * n;
  int rc = sl_check(c->lib, c->lib->api->GetStringTensorContent(t->value, text, total, offsets, n), &c->error);
  for (size_t i = 0; rc == 0 && i < n; i++) {
    size_t end = i + 1 < n ? offsets[i + 1] : total;
    size_t len = end - offsets[i];
    unsigned char *p = (unsigned char *)to + 4 * i + offsets[i];
    p[0] = len & 0xff, p[1] = len >> 8 & 0xff, p[2] = len >> 16 & 0xff, p[3] = len >> 24 & 0xff;
    memmove(p + 4, text + offsets[i], len);
  }
  free(offsets);
  return rc;
}
