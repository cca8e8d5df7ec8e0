//go:build cgo

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "layout.h"

// frame is treelite's view on an array. Source: TreelitePyBufferFrame, treelite/c_api.h of treelite 4.
typedef struct frame {
  void *data;
  char *format;
  size_t item;   // bytes
  size_t count;  // items
} frame;

// The functions of treelite's C API that are used. Source: the same header.
static struct {
  const char *(*last_error)(void);
  int (*load_xgboost_legacy)(const char *file, const char *config, void **out);
  int (*load_xgboost_json)(const char *file, const char *config, void **out);
  int (*load_xgboost_ubjson)(const char *file, const char *config, void **out);
  int (*load_lightgbm)(const char *file, const char *config, void **out);
  int (*load_checkpoint)(const char *file, void **out);
  int (*serialize)(void *model, const char **bytes, size_t *size);
  int (*header_field)(void *model, const char *name, frame *to);
  int (*tree_field)(void *model, uint64_t tree, const char *name, frame *to);
} lib;

static int open_library(const char *path, char *text) {
  void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (h == NULL) return sl_forest_fail(text, "%s", dlerror());
  const struct {
    const char *name;
    void **at;
  } wanted[] = {
      {"TreeliteGetLastError", (void **)&lib.last_error},
      {"TreeliteLoadXGBoostModelLegacyBinary", (void **)&lib.load_xgboost_legacy},
      {"TreeliteLoadXGBoostModelJSON", (void **)&lib.load_xgboost_json},
      {"TreeliteLoadXGBoostModelUBJSON", (void **)&lib.load_xgboost_ubjson},
      {"TreeliteLoadLightGBMModel", (void **)&lib.load_lightgbm},
      {"TreeliteDeserializeModelFromFile", (void **)&lib.load_checkpoint},
      {"TreeliteSerializeModelToBytes", (void **)&lib.serialize},
      {"TreeliteGetHeaderField", (void **)&lib.header_field},
      {"TreeliteGetTreeField", (void **)&lib.tree_field},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    *wanted[i].at = dlsym(h, wanted[i].name);
    if (*wanted[i].at == NULL)
      return sl_forest_fail(text, "it has no symbol %s: treelite 4 from 4.4 on is needed", wanted[i].name);
  }
  return 0;
}

// reading is a model of treelite's that becomes a block.
typedef struct reading {
  void *model;
  sl_head head;
  sl_forest f;
  char *block;
  char *text;
  uint64_t vectors, categories;  // laid out so far
} reading;

// header gives a field of so many items of so many bytes; count 0: any number.
static int header(reading *r, const char *name, size_t item, size_t count, frame *to) {
  memset(to, 0, sizeof *to);
  if (lib.header_field(r->model, name, to) != 0) return sl_forest_fail(r->text, "%s", lib.last_error());
  if (to->item != item || (count != 0 && to->count != count) || (to->count != 0 && to->data == NULL))
    return sl_forest_fail(r->text, "its field '%s' has %zu items of %zu bytes, want %zu of %zu", name, to->count, to->item, count, item);
  return 0;
}

// scalar copies a field of one item.
static int scalar(reading *r, const char *name, size_t size, void *to) {
  frame f;
  if (header(r, name, size, 1, &f) != 0) return -1;
  memcpy(to, f.data, size);
  return 0;
}

static int flag(reading *r, const char *name, int32_t *to) {
  uint8_t v;
  if (scalar(r, name, 1, &v) != 0) return -1;
  *to = v;
  return 0;
}

static int read_post(reading *r) {
  static const struct {
    const char *name;
    int post;
  } known[] = {{"identity", SL_IDENTITY},
               {"identity_multiclass", SL_IDENTITY},
               {"signed_square", SL_SIGNED_SQUARE},
               {"hinge", SL_HINGE},
               {"sigmoid", SL_SIGMOID},
               {"multiclass_ova", SL_SIGMOID},
               {"exponential", SL_EXPONENTIAL},
               {"exponential_standard_ratio", SL_EXPONENTIAL_STANDARD_RATIO},
               {"logarithm_one_plus_exp", SL_LOGARITHM_ONE_PLUS_EXP},
               {"softmax", SL_SOFTMAX}};
  frame name;
  if (header(r, "postprocessor", 1, 0, &name) != 0 || scalar(r, "sigmoid_alpha", 4, &r->head.alpha) != 0 ||
      scalar(r, "ratio_c", 4, &r->head.ratio) != 0)
    return -1;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strlen(known[i].name) == name.count && memcmp(known[i].name, name.data, name.count) == 0) {
      r->head.post = known[i].post;
      return 0;
    }
  return sl_forest_fail(r->text, "its postprocessor '%.*s' is not known", name.count < 64 ? (int)name.count : 64, (char *)name.data);
}

// read_head reads all of the head but how much the trees have.
static int read_head(reading *r) {
  sl_head *h = &r->head;
  frame classes;
  int32_t type;
  h->magic = SL_MAGIC;
  if (scalar(r, "num_feature", 4, &h->features) != 0 || scalar(r, "num_target", 4, &h->targets) != 0) return -1;
  if (h->targets < 1 || h->targets > SL_MOST_OUTPUTS) return sl_forest_fail(r->text, "it has %d targets", h->targets);
  if (header(r, "num_class", 4, (size_t)h->targets, &classes) != 0) return -1;
  for (int32_t t = 0; t < h->targets; t++) {
    int32_t n = ((const int32_t *)classes.data)[t];
    if (n > h->classes) h->classes = n;
  }
  if (flag(r, "task_type", &h->task) != 0 || flag(r, "average_tree_output", &h->average) != 0 ||
      flag(r, "threshold_type", &type) != 0 || scalar(r, "num_tree", 8, &h->trees) != 0)
    return -1;
  if (type != 2 && type != 3) return sl_forest_fail(r->text, "its thresholds are of type %d, want 2 (float) or 3 (double)", type);
  h->wide = type == 3;
  return read_post(r);
}

// margins makes XGBoost's own base of each class: it computes the margin of its base score in float, treelite in double.
static void margins(sl_forest *f) {
  if (f->head->wide) return;
  for (int32_t i = 0; i < f->head->targets * f->head->classes; i++) {
    if (f->base[i] == 0) continue;
    if (f->head->post == SL_SIGMOID && f->head->alpha == 1)
      f->base[i] = -logf(1.0f / (float)(1 / (1 + exp(-f->base[i]))) - 1.0f);
    if (f->head->post == SL_EXPONENTIAL) f->base[i] = logf((float)exp(f->base[i]));
  }
}

// columns are the fields of one tree's nodes.
typedef struct columns {
  int32_t nodes;
  frame left, right, feature, default_left, type, test, value, threshold, list_right, vector, vector_begin, vector_end,
      category, category_begin, category_end;
} columns;

static int column(reading *r, uint64_t tree, const char *name, size_t item, size_t count, frame *to) {
  memset(to, 0, sizeof *to);
  if (lib.tree_field(r->model, tree, name, to) != 0) return sl_forest_fail(r->text, "%s", lib.last_error());
  if (to->item != item || (count != 0 && to->count != count) || (to->count != 0 && to->data == NULL))
    return sl_forest_fail(r->text, "its tree %llu has %zu items of %zu bytes in '%s', want %zu of %zu", (unsigned long long)tree,
                   to->count, to->item, name, count, item);
  return 0;
}

static int read_columns(reading *r, uint64_t tree, columns *c) {
  frame nodes;
  if (column(r, tree, "num_nodes", 4, 1, &nodes) != 0) return -1;
  memcpy(&c->nodes, nodes.data, 4);
  if (c->nodes < 1) return sl_forest_fail(r->text, "its tree %llu has %d nodes", (unsigned long long)tree, c->nodes);
  const size_t n = (size_t)c->nodes, real = r->head.wide ? 8 : 4;
  const struct {
    const char *name;
    size_t item, count;
    frame *to;
  } all[] = {{"cleft", 4, n, &c->left},
             {"cright", 4, n, &c->right},
             {"split_index", 4, n, &c->feature},
             {"default_left", 1, n, &c->default_left},
             {"node_type", 1, n, &c->type},
             {"cmp", 1, n, &c->test},
             {"leaf_value", real, n, &c->value},
             {"threshold", real, n, &c->threshold},
             {"category_list_right_child", 1, n, &c->list_right},
             {"leaf_vector", real, 0, &c->vector},
             {"leaf_vector_begin", 8, n, &c->vector_begin},
             {"leaf_vector_end", 8, n, &c->vector_end},
             {"category_list", 4, 0, &c->category},
             {"category_list_begin", 8, n, &c->category_begin},
             {"category_list_end", 8, n, &c->category_end}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (column(r, tree, all[i].name, all[i].item, all[i].count, all[i].to) != 0) return -1;
  return 0;
}

static int32_t int_at(const frame *f, int32_t i) { return ((const int32_t *)f->data)[i]; }
static uint64_t long_at(const frame *f, int32_t i) { return ((const uint64_t *)f->data)[i]; }
static uint8_t byte_at(const frame *f, int32_t i) { return ((const uint8_t *)f->data)[i]; }

// span is the length of a part of a list; it must lie in it.
static int span(reading *r, uint64_t tree, const frame *list, const frame *begins, const frame *ends, int32_t i, uint64_t *length) {
  const uint64_t begin = long_at(begins, i), end = long_at(ends, i);
  if (begin > end || end > list->count)
    return sl_forest_fail(r->text, "its tree %llu has a list from %llu to %llu among %zu items", (unsigned long long)tree,
                   (unsigned long long)begin, (unsigned long long)end, list->count);
  *length = end - begin;
  return 0;
}

// count finds out how much the trees have. A list may be named by several nodes: it is counted for each.
static int count(reading *r) {
  sl_head *h = &r->head;
  for (uint64_t t = 0; t < h->trees; t++) {
    columns c;
    if (read_columns(r, t, &c) != 0) return -1;
    h->nodes += (uint64_t)c.nodes;
    for (int32_t i = 0; i < c.nodes; i++) {
      uint64_t vectors = 0, categories = 0;
      if (span(r, t, &c.vector, &c.vector_begin, &c.vector_end, i, &vectors) != 0 ||
          span(r, t, &c.category, &c.category_begin, &c.category_end, i, &categories) != 0)
        return -1;
      h->vectors += vectors;
      h->categories += categories;
      if (h->nodes > SL_MOST_ITEMS || h->vectors > SL_MOST_ITEMS || h->categories > SL_MOST_ITEMS)
        return sl_forest_fail(r->text, "it has more than %llu nodes", (unsigned long long)SL_MOST_ITEMS);
    }
  }
  return 0;
}

static int by_number(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

// lay_list copies a node's values or categories, and names their place.
static void lay_list(void *to, uint64_t *used, size_t item, const frame *list, uint64_t begin, uint32_t n) {
  if (n) memcpy((char *)to + item * *used, (const char *)list->data + item * begin, item * n);
  *used += n;
}

// lay_node copies a node. What is wrong with it, sl_forest_check says.
static void lay_node(reading *r, uint64_t at, const columns *c, int32_t i) {
  static const uint32_t tests[] = {SL_TEST, SL_EQ, SL_LT, SL_LE, SL_GT, SL_GE};  // by treelite's Operator
  const size_t real = r->head.wide ? 8 : 4;
  const int32_t left = int_at(&c->left, i);
  const uint8_t type = byte_at(&c->type, i), test = byte_at(&c->test, i);
  uint32_t flags = byte_at(&c->default_left, i) ? SL_DEFAULT_LEFT : 0, n = 0;
  uint64_t list = 0;
  const void *value = (const char *)(left < 0 ? c->value.data : c->threshold.data) + real * (size_t)i;
  if (left < 0) {
    list = r->vectors;
    n = (uint32_t)(long_at(&c->vector_end, i) - long_at(&c->vector_begin, i));
    lay_list(r->f.vector, &r->vectors, real, &c->vector, long_at(&c->vector_begin, i), n);
  } else if (type == 2) {
    flags |= SL_IN | (byte_at(&c->list_right, i) ? SL_LIST_RIGHT : 0);
    list = r->categories;
    n = (uint32_t)(long_at(&c->category_end, i) - long_at(&c->category_begin, i));
    lay_list(r->f.category, &r->categories, 4, &c->category, long_at(&c->category_begin, i), n);
    qsort(r->f.category + list, n, 4, by_number);
  } else {
    flags |= type == 1 && test < 6 ? tests[test] : SL_TEST;
  }
  const int32_t feature = int_at(&c->feature, i), right = int_at(&c->right, i);
  if (r->head.wide) {
    sl_node64 *to = (sl_node64 *)r->f.node + at;
    *to = (sl_node64){0, feature, left, right, flags, n, list};
    memcpy(&to->value, value, real);
  } else {
    sl_node32 *to = (sl_node32 *)r->f.node + at;
    *to = (sl_node32){0, feature, left, right, flags, n, list};
    memcpy(&to->value, value, real);
  }
}

static int lay_trees(reading *r) {
  const sl_head *h = &r->head;
  frame target, class_;
  if (h->trees == 0) return 0;
  if (header(r, "target_id", 4, h->trees, &target) != 0 || header(r, "class_id", 4, h->trees, &class_) != 0) return -1;
  uint64_t at = 0;
  for (uint64_t t = 0; t < h->trees; t++) {
    columns c;
    if (read_columns(r, t, &c) != 0) return -1;
    sl_tree *tree = &r->f.tree[t];
    *tree = (sl_tree){at, ((const int32_t *)target.data)[t], ((const int32_t *)class_.data)[t]};
    for (int32_t k = 0; k < h->targets; k++)
      for (int32_t n = 0; n < h->classes; n++)
        if ((tree->target < 0 || tree->target == k) && (tree->class_ < 0 || tree->class_ == n)) r->f.counts[k * h->classes + n]++;
    for (int32_t i = 0; i < c.nodes; i++) lay_node(r, at + (uint64_t)i, &c, i);
    at += (uint64_t)c.nodes;
  }
  return 0;
}

static int lay_forest(reading *r) {
  const size_t width = (size_t)r->head.targets * (size_t)r->head.classes;
  frame classes, base;
  memcpy(r->block, &r->head, sizeof r->head);
  if (header(r, "num_class", 4, (size_t)r->head.targets, &classes) != 0 || header(r, "base_scores", 8, width, &base) != 0) return -1;
  memcpy(r->f.class_count, classes.data, 4 * (size_t)r->head.targets);
  memcpy(r->f.base, base.data, 8 * width);
  margins(&r->f);
  return lay_trees(r);
}

static int write_all(int fd, const char *data, size_t n, char *text) {
  while (n > 0) {
    ssize_t written = write(fd, data, n);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return sl_forest_fail(text, "writing it: %s", strerror(errno));
    data += written;
    n -= (size_t)written;
  }
  return 0;
}

static int load(int format, const char *file, const char *config, void **model) {
  switch (format) {
    case SL_XGBOOST: return lib.load_xgboost_legacy(file, config, model);
    case SL_XGBOOST_JSON: return lib.load_xgboost_json(file, config, model);
    case SL_XGBOOST_UBJSON: return lib.load_xgboost_ubjson(file, config, model);
    case SL_LIGHTGBM: return lib.load_lightgbm(file, config, model);
    default: return lib.load_checkpoint(file, model);
  }
}

// whole refuses a checkpoint that ends too early, which treelite does not see: it then keeps zeros, or what memory held. One of
// version 3.9 would be of another size if it were written again, and is let through; its arrays are of the size that they should have.
static int whole(const char *file, void *model, char *text) {
  const char *bytes;
  size_t size;
  int32_t major;
  struct stat info;
  FILE *f = fopen(file, "rb");
  if (f == NULL) return sl_forest_fail(text, "%s", strerror(errno));
  const size_t got = fread(&major, sizeof major, 1, f);
  const int failed = got != 1 || fstat(fileno(f), &info) != 0;
  fclose(f);
  if (failed) return sl_forest_fail(text, "it ends in its header");
  if (major < 4) return 0;
  if (lib.serialize(model, &bytes, &size) != 0) return sl_forest_fail(text, "%s", lib.last_error());
  if ((size_t)info.st_size < size) return sl_forest_fail(text, "it ends too early: it has %zu bytes of %zu", (size_t)info.st_size, size);
  return 0;
}

int sl_forest_write(const char *library, int format, const char *file, const char *config, int fd, char *text) {
  reading r = {.text = text};  // the process ends afterwards, and with it what was read
  if (open_library(library, text) != 0) return -1;
  if (load(format, file, config, &r.model) != 0) return sl_forest_fail(text, "%s", lib.last_error());
  if (format == SL_CHECKPOINT && whole(file, r.model, text) != 0) return -1;
  if (read_head(&r) != 0 || count(&r) != 0) return -1;
  const size_t size = sl_forest_lay(NULL, &r.head, &r.f);
  if (size == 0)
    return sl_forest_fail(text, "it has %d features, %d targets, %d classes and %llu trees", r.head.features, r.head.targets, r.head.classes,
                   (unsigned long long)r.head.trees);
  r.block = aligned_alloc(64, size);
  if (r.block == NULL) return sl_forest_fail(text, "there is no memory for it");
  memset(r.block, 0, size);
  sl_forest_lay(r.block, &r.head, &r.f);
  r.f.head = &r.head;
  if (lay_forest(&r) != 0) return -1;
  return write_all(fd, r.block, size, text);
}
