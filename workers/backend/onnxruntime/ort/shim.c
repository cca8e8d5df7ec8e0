//go:build onnxruntime

#include "shim.h"

#include <dlfcn.h>
#include <features.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int sl_fail(sl_error *e, int code, const char *text) {
  e->code = code;
  snprintf(e->text, sizeof e->text, "%s", text ? text : "");
  return code;
}

// sl_check turns a status into e and releases it.
int sl_check(const sl_lib *lib, OrtStatus *st, sl_error *e) {
  if (st == NULL) return 0;
  int code = lib->api->GetErrorCode(st);
  sl_fail(e, code == 0 ? ORT_FAIL : code, lib->api->GetErrorMessage(st));
  lib->api->ReleaseStatus(st);
  return e->code;
}

// ONNX Runtime has one environment for a process, and one logger with it. Lines go to
// the pipe of the library that was opened last, as "<severity><text>\0"; a full pipe
// drops them, so that nothing here waits.
static pthread_mutex_t log_mu = PTHREAD_MUTEX_INITIALIZER;
static int log_fd_now = -1;

static void ORT_API_CALL log_line(void *param, OrtLoggingLevel severity, const char *category, const char *logid,
                                  const char *location, const char *message) {
  (void)param, (void)category, (void)logid, (void)location;
  char line[1024];
  int n = snprintf(line, sizeof line, "%d%s", (int)severity, message);
  if (n < 0) return;
  if ((size_t)n >= sizeof line) n = sizeof line - 1;
  line[n] = 0;
  pthread_mutex_lock(&log_mu);
  if (log_fd_now >= 0) {
    ssize_t written = write(log_fd_now, line, (size_t)n + 1);
    (void)written;
  }
  pthread_mutex_unlock(&log_mu);
}

static int make_env(sl_lib *lib, int global_pool, int intra, int inter, sl_error *e) {
  const OrtApi *a = lib->api;
  if (!global_pool)
    return sl_check(lib, a->CreateEnvWithCustomLogger(log_line, NULL, ORT_LOGGING_LEVEL_WARNING, "sluice", &lib->env), e);
  OrtThreadingOptions *t = NULL;
  int rc = sl_check(lib, a->CreateThreadingOptions(&t), e);
  if (rc == 0) rc = sl_check(lib, a->SetGlobalIntraOpNumThreads(t, intra), e);
  if (rc == 0) rc = sl_check(lib, a->SetGlobalInterOpNumThreads(t, inter), e);
  if (rc == 0) rc = sl_check(lib, a->SetGlobalSpinControl(t, 0), e);
  if (rc == 0)
    rc = sl_check(lib, a->CreateEnvWithCustomLoggerAndGlobalThreadPools(log_line, NULL, ORT_LOGGING_LEVEL_WARNING,
                                                                    "sluice", t, &lib->env), e);
  if (t) a->ReleaseThreadingOptions(t);
  return rc;
}

// api_version reads the minor number of "1.31.1": the API's version of that library.
static uint32_t api_version(const char *version) {
  unsigned major = 0, minor = 0;
  if (sscanf(version, "%u.%u", &major, &minor) != 2 || major != 1) return 0;
  return minor < ORT_API_VERSION ? minor : ORT_API_VERSION;
}

int sl_open(const char *path, int log_fd, int global_pool, int intra, int inter, sl_lib **out, sl_error *e) {
  // The official builds since 1.29 report models and machines to their maker. By the
  // environment made below, DisableTelemetryEvents is too late: a device identity is
  // written to the home folder by then. This variable is read first.
  if (setenv("ORT_DISABLE_TELEMETRY", "1", 1) != 0) return sl_fail(e, SL_ERR_MEMORY, "out of memory");
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (h == NULL) return sl_fail(e, SL_ERR_LIBRARY, dlerror());
  const OrtApiBase *(*base)(void) = (const OrtApiBase *(*)(void))dlsym(h, "OrtGetApiBase");
  if (base == NULL) return sl_fail(e, SL_ERR_LIBRARY, "it has no symbol OrtGetApiBase");
  const char *version = base()->GetVersionString();
  uint32_t v = api_version(version);
  if (v < 17) {
    char text[128];
    snprintf(text, sizeof text, "it is version %.40s, the oldest that can be used is 1.17", version);
    return sl_fail(e, SL_ERR_LIBRARY, text);
  }
  sl_lib *lib = calloc(1, sizeof *lib);
  if (lib == NULL) return sl_fail(e, SL_ERR_MEMORY, "out of memory");
  lib->version = version;
  lib->api_version = v;
  lib->api = base()->GetApi(v);
  if (lib->api == NULL) {
    free(lib);
    return sl_fail(e, SL_ERR_LIBRARY, "it does not offer the API of its own version");
  }
  pthread_mutex_lock(&log_mu);
  log_fd_now = log_fd;
  pthread_mutex_unlock(&log_mu);
  int rc = make_env(lib, global_pool, intra, inter, e);
  if (rc == 0) rc = sl_check(lib, lib->api->DisableTelemetryEvents(lib->env), e);
  if (rc == 0) rc = sl_check(lib, lib->api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &lib->cpu), e);
  if (rc == 0) rc = sl_check(lib, lib->api->GetAllocatorWithDefaultOptions(&lib->allocator), e);
  if (rc != 0) {
    sl_close(lib, log_fd);
    return rc;
  }
  *out = lib;
  return 0;
}

void sl_close(sl_lib *lib, int log_fd) {
  if (lib->cpu) lib->api->ReleaseMemoryInfo(lib->cpu);
  if (lib->env) lib->api->ReleaseEnv(lib->env);
  free(lib);  // the library stays mapped: its threads and exit handlers may live on
  pthread_mutex_lock(&log_mu);
  if (log_fd_now == log_fd) log_fd_now = -1;
  pthread_mutex_unlock(&log_mu);
}

int sl_providers(const sl_lib *lib, char ***names, int *n, sl_error *e) {
  return sl_check(lib, lib->api->GetAvailableProviders(names, n), e);
}

void sl_release_providers(const sl_lib *lib, char **names, int n) {
  OrtStatus *st = lib->api->ReleaseAvailableProviders(names, n);
  if (st) lib->api->ReleaseStatus(st);
}

int sl_options_new(const sl_lib *lib, OrtSessionOptions **out, sl_error *e) {
  return sl_check(lib, lib->api->CreateSessionOptions(out), e);
}

void sl_options_free(const sl_lib *lib, OrtSessionOptions *o) { lib->api->ReleaseSessionOptions(o); }

int sl_options_set(const sl_lib *lib, OrtSessionOptions *o, int what, int value, sl_error *e) {
  const OrtApi *a = lib->api;
  switch (what) {
    case SL_GRAPH_LEVEL: return sl_check(lib, a->SetSessionGraphOptimizationLevel(o, (GraphOptimizationLevel)value), e);
    case SL_PARALLEL: return sl_check(lib, a->SetSessionExecutionMode(o, value ? ORT_PARALLEL : ORT_SEQUENTIAL), e);
    case SL_INTRA: return sl_check(lib, a->SetIntraOpNumThreads(o, value), e);
    case SL_INTER: return sl_check(lib, a->SetInterOpNumThreads(o, value), e);
    case SL_ARENA: return sl_check(lib, value ? a->EnableCpuMemArena(o) : a->DisableCpuMemArena(o), e);
    case SL_PATTERN: return sl_check(lib, value ? a->EnableMemPattern(o) : a->DisableMemPattern(o), e);
    case SL_GLOBAL_POOL: return sl_check(lib, a->DisablePerSessionThreads(o), e);
  }
  return sl_fail(e, ORT_INVALID_ARGUMENT, "unknown session option");
}

int sl_options_entry(const sl_lib *lib, OrtSessionOptions *o, const char *key, const char *value, sl_error *e) {
  return sl_check(lib, lib->api->AddSessionConfigEntry(o, key, value), e);
}

int sl_options_cuda(const sl_lib *lib, OrtSessionOptions *o, const char *const *keys, const char *const *values,
                    size_t n, sl_error *e) {
  OrtCUDAProviderOptionsV2 *p = NULL;
  int rc = sl_check(lib, lib->api->CreateCUDAProviderOptions(&p), e);
  if (rc == 0 && n > 0) rc = sl_check(lib, lib->api->UpdateCUDAProviderOptions(p, keys, values, n), e);
  if (rc == 0) rc = sl_check(lib, lib->api->SessionOptionsAppendExecutionProvider_CUDA_V2(o, p), e);
  if (p) lib->api->ReleaseCUDAProviderOptions(p);
  return rc;
}

int sl_options_tensorrt(const sl_lib *lib, OrtSessionOptions *o, const char *const *keys, const char *const *values,
                        size_t n, sl_error *e) {
  OrtTensorRTProviderOptionsV2 *p = NULL;
  int rc = sl_check(lib, lib->api->CreateTensorRTProviderOptions(&p), e);
  if (rc == 0 && n > 0) rc = sl_check(lib, lib->api->UpdateTensorRTProviderOptions(p, keys, values, n), e);
  if (rc == 0) rc = sl_check(lib, lib->api->SessionOptionsAppendExecutionProvider_TensorRT_V2(o, p), e);
  if (p) lib->api->ReleaseTensorRTProviderOptions(p);
  return rc;
}

int sl_options_library(const sl_lib *lib, OrtSessionOptions *o, const char *path, sl_error *e) {
  return sl_check(lib, lib->api->RegisterCustomOpsLibrary_V2(o, path), e);
}

void sl_options_cancel(const sl_lib *lib, OrtSessionOptions *o) {
  if (lib->api_version < 22) return;
  OrtStatus *st = lib->api->SessionOptionsSetLoadCancellationFlag(o, 1);
  if (st) lib->api->ReleaseStatus(st);
}

int sl_session(const sl_lib *lib, const char *path, const OrtSessionOptions *o, OrtSession **out, sl_error *e) {
  return sl_check(lib, lib->api->CreateSession(lib->env, path, o, out), e);
}

void sl_session_free(const sl_lib *lib, OrtSession *s) {
  lib->api->ReleaseSession(s);
#ifdef __GLIBC__
  malloc_trim(0);  // the weights' memory goes back to the system, not to malloc's lists
#endif
}

int sl_count(const sl_lib *lib, const OrtSession *s, int kind, size_t *n, sl_error *e) {
  switch (kind) {
    case SL_INPUT: return sl_check(lib, lib->api->SessionGetInputCount(s, n), e);
    case SL_OUTPUT: return sl_check(lib, lib->api->SessionGetOutputCount(s, n), e);
    default: return sl_check(lib, lib->api->SessionGetOverridableInitializerCount(s, n), e);
  }
}

static int describe_tensor(const sl_lib *lib, const OrtTypeInfo *ti, sl_info *info, sl_error *e) {
  const OrtApi *a = lib->api;
  const OrtTensorTypeAndShapeInfo *shape = NULL;
  enum ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  size_t rank = 0;
  int rc = sl_check(lib, a->CastTypeInfoToTensorInfo(ti, &shape), e);
  if (rc == 0) rc = sl_check(lib, a->GetTensorElementType(shape, &type), e);
  if (rc == 0) rc = sl_check(lib, a->GetDimensionsCount(shape, &rank), e);
  if (rc != 0) return rc;
  info->type = type;
  if (rank > SL_MAX_RANK) return sl_fail(e, SL_ERR_TYPE, "the model has a tensor of more than 32 dimensions");
  info->rank = (int)rank;
  if (rank == 0) {
    if (lib->api_version >= 24 && !a->TensorTypeAndShape_HasShape(shape)) info->rank = -1;
    return 0;
  }
  const char *symbols[SL_MAX_RANK] = {0};
  rc = sl_check(lib, a->GetDimensions(shape, info->dims, rank), e);
  if (rc == 0) rc = sl_check(lib, a->GetSymbolicDimensions(shape, symbols, rank), e);
  for (size_t i = 0; rc == 0 && i < rank; i++)
    if (symbols[i] && symbols[i][0]) info->symbols[i] = strdup(symbols[i]);
  return rc;
}

int sl_describe(const sl_lib *lib, const OrtSession *s, int kind, size_t i, sl_info *info, sl_error *e) {
  const OrtApi *a = lib->api;
  char *name = NULL;
  OrtTypeInfo *ti = NULL;
  OrtStatus *st;
  switch (kind) {
    case SL_INPUT: st = a->SessionGetInputName(s, i, lib->allocator, &name); break;
    case SL_OUTPUT: st = a->SessionGetOutputName(s, i, lib->allocator, &name); break;
    default: st = a->SessionGetOverridableInitializerName(s, i, lib->allocator, &name);
  }
  int rc = sl_check(lib, st, e);
  if (rc != 0) return rc;
  info->name = strdup(name);
  st = a->AllocatorFree(lib->allocator, name);
  if (st) a->ReleaseStatus(st);
  if (info->name == NULL) return sl_fail(e, SL_ERR_MEMORY, "out of memory");
  switch (kind) {
    case SL_INPUT: st = a->SessionGetInputTypeInfo(s, i, &ti); break;
    case SL_OUTPUT: st = a->SessionGetOutputTypeInfo(s, i, &ti); break;
    default: st = a->SessionGetOverridableInitializerTypeInfo(s, i, &ti);
  }
  rc = sl_check(lib, st, e);
  if (rc != 0) return rc;
  enum ONNXType onnx_type = ONNX_TYPE_UNKNOWN;
  rc = sl_check(lib, a->GetOnnxTypeFromTypeInfo(ti, &onnx_type), e);
  info->onnx_type = onnx_type;
  if (rc == 0 && onnx_type == ONNX_TYPE_TENSOR) rc = describe_tensor(lib, ti, info, e);
  a->ReleaseTypeInfo(ti);
  return rc;
}

void sl_info_free(sl_info *info) {
  free(info->name);
  for (int i = 0; i < SL_MAX_RANK; i++) free(info->symbols[i]);
}
