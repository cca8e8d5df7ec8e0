// A forest of decision trees: read by treelite's library in a process of its own, checked, and evaluated here.
#ifndef SLUICE_FOREST_H
#define SLUICE_FOREST_H

#include <stddef.h>
#include <stdint.h>

#define SL_TEXT 1024  // bytes of an error's text

enum sl_format { SL_XGBOOST, SL_XGBOOST_JSON, SL_XGBOOST_UBJSON, SL_LIGHTGBM, SL_CHECKPOINT };

// What becomes of a row's sums; the names are treelite's.
enum sl_post {
  SL_IDENTITY,
  SL_SIGNED_SQUARE,
  SL_HINGE,
  SL_SIGMOID,
  SL_EXPONENTIAL,
  SL_EXPONENTIAL_STANDARD_RATIO,
  SL_LOGARITHM_ONE_PLUS_EXP,
  SL_SOFTMAX,
  SL_POSTS,
};

// A forest is one block: its head, and behind it the arrays in the order of sl_forest, each aligned to 64 bytes. It has no
// pointers, so that one process can write it and another one map it.
typedef struct sl_head {
  uint64_t magic;
  int32_t features;
  int32_t targets;
  int32_t classes;     // of the target that has the most
  int32_t task;        // treelite's TaskType: 0 binary classifier, 1 regressor, 2 classifier, 3 ranking, 4 isolation forest
  int32_t wide;        // 1: it computes in double, 0: in float
  int32_t average;     // 1: sums are divided by how many trees add to them
  int32_t post;        // enum sl_post
  float alpha, ratio;  // of the sigmoid, of the exponential standard ratio
  int32_t spare;
  uint64_t trees, nodes, vectors, categories;
} sl_head;

typedef struct sl_tree {
  uint64_t root;   // its first node; the others follow
  int32_t target;  // that it adds to, -1: its leaves have a value for each
  int32_t class_;  // likewise
} sl_tree;

// sl_forest is a block with the places of its arrays.
typedef struct sl_forest {
  const sl_head *head;
  int32_t *class_count;  // targets: of each its classes
  double *base;          // targets x classes
  uint64_t *counts;      // targets x classes: trees that add to it
  sl_tree *tree;         // trees
  void *node;            // nodes: sl_node32, or sl_node64 where it is wide
  void *vector;          // vectors: values of leaves that have many; float or double
  uint32_t *category;    // categories: sorted lists of all nodes
} sl_forest;

// sl_forest_write reads a file with treelite's library at path and writes the forest's block to fd. config is
// treelite's, in JSON. It returns 0, or -1 with a text that says what is wrong. A damaged file may crash it.
int sl_forest_write(const char *library, int format, const char *file, const char *config, int fd, char *text);

// sl_forest_check says whether a block, aligned to 64 bytes, is one that may be evaluated, and fills f. It returns 0, or -1 with
// a text. The block must not change afterwards.
int sl_forest_check(void *block, size_t size, sl_forest *f, char *text);

// sl_forest_sum evaluates rows, one behind the other, into rows x targets x classes sums. Input and output are float,
// or double where the forest is wide. Any number of threads may evaluate a forest.
void sl_forest_sum(const sl_forest *f, const void *input, uint64_t rows, void *output);

// sl_forest_post makes predictions of sums, in place.
void sl_forest_post(const sl_forest *f, uint64_t rows, void *output);

#endif
