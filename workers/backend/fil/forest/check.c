//go:build cgo

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

int sl_forest_fail(char *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(text, SL_TEXT, format, args);
  va_end(args);
  return -1;
}

static int within(const sl_head *h) {
  return h->features >= 1 && h->targets >= 1 && h->classes >= 1 && h->targets <= SL_MOST_OUTPUTS / h->classes &&
         h->post >= 0 && h->post < SL_POSTS && (h->wide == 0 || h->wide == 1) && h->trees <= SL_MOST_ITEMS &&
         h->nodes <= SL_MOST_ITEMS && h->vectors <= SL_MOST_ITEMS && h->categories <= SL_MOST_ITEMS;
}

size_t sl_forest_lay(void *block, const sl_head *h, sl_forest *f) {
  if (!within(h)) return 0;
  const size_t width = (size_t)h->targets * (size_t)h->classes, real = h->wide ? 8 : 4;
  const size_t node = h->wide ? sizeof(sl_node64) : sizeof(sl_node32);
  struct {
    void **to;
    size_t count, size;
  } arrays[] = {{(void **)&f->class_count, (size_t)h->targets, 4},
                {(void **)&f->base, width, 8},
                {(void **)&f->counts, width, 8},
                {(void **)&f->tree, h->trees, sizeof(sl_tree)},
                {&f->node, h->nodes, node},
                {&f->vector, h->vectors, real},
                {(void **)&f->category, h->categories, 4}};
  size_t at = (sizeof *h + 63) & ~(size_t)63;
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
    *arrays[i].to = block == NULL ? NULL : (char *)block + at;
    at += (arrays[i].count * arrays[i].size + 63) & ~(size_t)63;
  }
  f->head = block == NULL ? h : block;
  return at;
}

// A node of either type, without its value.
typedef struct plain {
  int32_t feature, left, right;
  uint32_t flags, count;
  uint64_t list;
} plain;

static plain node_at(const sl_forest *f, uint64_t i) {
  if (f->head->wide) {
    const sl_node64 *n = (const sl_node64 *)f->node + i;
    return (plain){n->feature, n->left, n->right, n->flags, n->count, n->list};
  }
  const sl_node32 *n = (const sl_node32 *)f->node + i;
  return (plain){n->feature, n->left, n->right, n->flags, n->count, n->list};
}

// check_leaf wants as many values as the tree's leaves must have; one alone may be the node's own.
static int check_leaf(const sl_forest *f, uint64_t tree, const plain *n, char *text) {
  const sl_tree *t = &f->tree[tree];
  const uint64_t want = (t->target < 0 ? (uint64_t)f->head->targets : 1) * (t->class_ < 0 ? (uint64_t)f->head->classes : 1);
  if (n->count != want && !(n->count == 0 && want == 1))
    return sl_forest_fail(text, "its tree %llu has a leaf of %u values, want %llu", (unsigned long long)tree, n->count,
                   (unsigned long long)want);
  if (n->list > f->head->vectors || n->count > f->head->vectors - n->list)
    return sl_forest_fail(text, "its tree %llu has a leaf whose values are not there", (unsigned long long)tree);
  return 0;
}

static int check_node(const sl_forest *f, uint64_t tree, uint64_t nodes, const plain *n, uint8_t *reached, char *text) {
  if (n->left < 0) return check_leaf(f, tree, n, text);
  if (n->left < 1 || (uint64_t)n->left >= nodes || n->right < 1 || (uint64_t)n->right >= nodes || n->feature < 0 ||
      n->feature >= f->head->features)
    return sl_forest_fail(text, "its tree %llu has a node with children %d and %d, for feature %d: there are %llu nodes and %d features",
                   (unsigned long long)tree, n->left, n->right, n->feature, (unsigned long long)nodes, f->head->features);
  if ((n->flags & SL_TEST) > SL_IN) return sl_forest_fail(text, "its tree %llu has a test that is not known", (unsigned long long)tree);
  if ((n->flags & SL_TEST) == SL_IN && (n->list > f->head->categories || n->count > f->head->categories - n->list))
    return sl_forest_fail(text, "its tree %llu has a list of categories that is not there", (unsigned long long)tree);
  if (reached[n->left]++ || reached[n->right]++)
    return sl_forest_fail(text, "its tree %llu reaches a node by two ways", (unsigned long long)tree);
  return 0;
}

// check_tree wants every node to have one parent at most, and the root none: then each walk from the root ends.
static int check_tree(const sl_forest *f, uint64_t tree, char *text) {
  const sl_head *h = f->head;
  const sl_tree *t = &f->tree[tree];
  const uint64_t end = tree + 1 < h->trees ? f->tree[tree + 1].root : h->nodes;
  if (t->root >= end || end > h->nodes) return sl_forest_fail(text, "its tree %llu has no nodes", (unsigned long long)tree);
  if (t->target < -1 || t->target >= h->targets || t->class_ < -1 ||
      t->class_ >= (t->target < 0 ? h->classes : f->class_count[t->target]))
    return sl_forest_fail(text, "its tree %llu is for class %d of target %d", (unsigned long long)tree, t->class_, t->target);
  uint8_t *reached = calloc(end - t->root, 1);
  if (reached == NULL) return sl_forest_fail(text, "there is no memory for it");
  int rc = 0;
  for (uint64_t i = t->root; i < end && rc == 0; i++) {
    const plain n = node_at(f, i);
    rc = check_node(f, tree, end - t->root, &n, reached, text);
  }
  free(reached);
  return rc;
}

int sl_forest_check(void *block, size_t size, sl_forest *f, char *text) {
  const sl_head *h = block;
  if (size < sizeof *h || h->magic != SL_MAGIC) return sl_forest_fail(text, "it is no forest");
  if (sl_forest_lay(block, h, f) != size) return sl_forest_fail(text, "it has %zu bytes, which is not what it says", size);
  for (int32_t t = 0; t < h->targets; t++)
    if (f->class_count[t] < 1 || f->class_count[t] > h->classes)
      return sl_forest_fail(text, "its target %d has %d classes", t, f->class_count[t]);
  for (uint64_t t = 0; t < h->trees; t++)
    if (check_tree(f, t, text) != 0) return -1;
  return 0;
}
