// Metrics of backends. The values are kept here, for who asks; each change goes to the worker, which tells the gateway.
#include "private.h"

#include <stdio.h>

struct TRITONSERVER_MetricFamily {
  TRITONSERVER_MetricKind kind;
  char *name, *help;
  uint32_t metrics; // atomic: that are not deleted
};

struct TRITONSERVER_MetricArgs {
  double *buckets;
  uint64_t count;
};

struct TRITONSERVER_Metric {
  TRITONSERVER_MetricFamily *family;
  char *labels;
  double *buckets;
  uint64_t bucket_count;
  pthread_mutex_t lock;
  double value; // guarded by lock
};

typedef struct change {
  th_metric public;
  struct change *next;
} change;

// most is how many changes wait for the worker. Those beyond it are dropped, and the first of them is logged.
enum { most = 100000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
static change *first, **last = &first;
static int waiting;
static bool told;

enum { SET, ADD, OBSERVE, DECLARE, DELETE };

static void push(TRITONSERVER_Metric *m, int what, double value) {
  change *c = grown(sizeof *c);
  c->public.family = copied(m->family->name);
  c->public.help = copied(m->family->help);
  c->public.labels = copied(m->labels);
  c->public.kind = m->family->kind;
  c->public.change = what;
  c->public.value = value;
  if (what == DECLARE && m->bucket_count > 0) {
    double *buckets = grown(m->bucket_count * sizeof *buckets);
    memcpy(buckets, m->buckets, m->bucket_count * sizeof *buckets);
    c->public.buckets = buckets;
    c->public.bucket_count = (uint32_t)m->bucket_count;
  }
  pthread_mutex_lock(&lock);
  bool full = waiting >= most, tell = full && !told;
  told |= full;
  if (!full) {
    *last = c;
    last = &c->next;
    waiting++;
    pthread_cond_signal(&came);
  }
  pthread_mutex_unlock(&lock);
  if (full) metric_free(&c->public);
  if (tell) log_line(TRITONSERVER_LOG_WARN, NULL, 0, "changes of metrics are dropped: a backend makes more than can be told");
}

th_metric *metric_wait(void) {
  pthread_mutex_lock(&lock);
  while (first == NULL) pthread_cond_wait(&came, &lock);
  change *c = first;
  first = c->next;
  if (first == NULL) last = &first;
  waiting--;
  pthread_mutex_unlock(&lock);
  return &c->public;
}

void metric_free(th_metric *m) {
  free((char *)m->family);
  free((char *)m->help);
  free((char *)m->labels);
  free((double *)m->buckets);
  free(m);
}

Error *TRITONSERVER_MetricFamilyNew(TRITONSERVER_MetricFamily **family, const TRITONSERVER_MetricKind kind,
                                    const char *name, const char *description) {
  TRITONSERVER_MetricFamily *f = grown(sizeof *f);
  f->kind = kind;
  f->name = copied(name);
  f->help = copied(description);
  *family = f;
  return NULL;
}

Error *TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily *f) {
  if (__atomic_load_n(&f->metrics, __ATOMIC_RELAXED) > 0)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete.");
  free(f->name);
  free(f->help);
  free(f);
  return NULL;
}

Error *TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily *f, TRITONSERVER_MetricKind *kind) {
  *kind = f->kind;
  return NULL;
}

Error *TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs **args) {
  *args = grown(sizeof **args);
  return NULL;
}

Error *TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs *args, const double *buckets, const uint64_t count) {
  free(args->buckets);
  args->buckets = grown(count * sizeof *buckets);
  if (count > 0) memcpy(args->buckets, buckets, count * sizeof *buckets);
  args->count = count;
  return NULL;
}

Error *TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs *args) {
  if (args != NULL) free(args->buckets);
  free(args);
  return NULL;
}

// quoted appends a text as a JSON string.
static char *quoted(char *to, const char *text) {
  *to++ = '"';
  for (; *text != '\0'; text++) {
    unsigned char c = (unsigned char)*text;
    if (c < 0x20) {
      to += sprintf(to, "\\u%04x", c);
      continue;
    }
    if (c == '"' || c == '\\') *to++ = '\\';
    *to++ = (char)c;
  }
  *to++ = '"';
  return to;
}

// labels_of is the JSON object of a metric's labels.
static Error *labels_of(const TRITONSERVER_Parameter **labels, uint64_t count, char **json) {
  size_t size = 3;
  for (uint64_t i = 0; i < count; i++) {
    const th_parameter *p = (const th_parameter *)labels[i];
    if (p->type != TRITONSERVER_PARAMETER_STRING)
      return errorf(TRITONSERVER_ERROR_INVALID_ARG, "Parameter [%s] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label.", p->name);
    size += 6 * (strlen(p->name) + p->size) + 8;
  }
  char *text = grown(size), *at = text;
  *at++ = '{';
  for (uint64_t i = 0; i < count; i++) {
    const th_parameter *p = (const th_parameter *)labels[i];
    if (i > 0) *at++ = ',';
    at = quoted(at, p->name);
    *at++ = ':';
    at = quoted(at, p->text);
  }
  *at++ = '}';
  *json = text;
  return NULL;
}

Error *TRITONSERVER_MetricNewWithArgs(TRITONSERVER_Metric **metric, TRITONSERVER_MetricFamily *f,
                                      const TRITONSERVER_Parameter **labels, const uint64_t count,
                                      const TRITONSERVER_MetricArgs *args) {
  *metric = NULL;
  char *json = NULL;
  Error *error = labels_of(labels, count, &json);
  if (error != NULL) return error;
  TRITONSERVER_Metric *m = grown(sizeof *m);
  m->family = f;
  m->labels = json;
  pthread_mutex_init(&m->lock, NULL);
  if (args != NULL && args->count > 0) {
    m->bucket_count = args->count;
    m->buckets = grown(args->count * sizeof *m->buckets);
    memcpy(m->buckets, args->buckets, args->count * sizeof *m->buckets);
  }
  __atomic_add_fetch(&f->metrics, 1, __ATOMIC_RELAXED);
  push(m, DECLARE, 0);
  *metric = m;
  return NULL;
}

Error *TRITONSERVER_MetricNew(TRITONSERVER_Metric **metric, TRITONSERVER_MetricFamily *f,
                              const TRITONSERVER_Parameter **labels, const uint64_t count) {
  return TRITONSERVER_MetricNewWithArgs(metric, f, labels, count, NULL);
}

Error *TRITONSERVER_MetricDelete(TRITONSERVER_Metric *m) {
  push(m, DELETE, 0);
  __atomic_sub_fetch(&m->family->metrics, 1, __ATOMIC_RELAXED);
  pthread_mutex_destroy(&m->lock);
  free(m->labels);
  free(m->buckets);
  free(m);
  return NULL;
}

Error *TRITONSERVER_MetricValue(TRITONSERVER_Metric *m, double *value) {
  if (m->family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value");
  pthread_mutex_lock(&m->lock);
  *value = m->value;
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

Error *TRITONSERVER_MetricIncrement(TRITONSERVER_Metric *m, double value) {
  if (m->family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment");
  if (m->family->kind == TRITONSERVER_METRIC_KIND_COUNTER && value < 0)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.");
  pthread_mutex_lock(&m->lock);
  m->value += value;
  push(m, ADD, value);
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

Error *TRITONSERVER_MetricSet(TRITONSERVER_Metric *m, double value) {
  if (m->family->kind == TRITONSERVER_METRIC_KIND_COUNTER)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "TRITONSERVER_METRIC_KIND_COUNTER does not support Set");
  if (m->family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM)
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Set");
  pthread_mutex_lock(&m->lock);
  m->value = value;
  push(m, SET, value);
  pthread_mutex_unlock(&m->lock);
  return NULL;
}

Error *TRITONSERVER_MetricObserve(TRITONSERVER_Metric *m, double value) {
  if (m->family->kind != TRITONSERVER_METRIC_KIND_HISTOGRAM)
    return errorf(TRITONSERVER_ERROR_UNSUPPORTED, "TRITONSERVER_METRIC_KIND_%s does not support Observe",
                  m->family->kind == TRITONSERVER_METRIC_KIND_COUNTER ? "COUNTER" : "GAUGE");
  push(m, OBSERVE, value);
  return NULL;
}
