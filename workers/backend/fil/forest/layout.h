// How a forest lies in memory; of the C files here alone.
#ifndef SLUICE_FOREST_LAYOUT_H
#define SLUICE_FOREST_LAYOUT_H

#include "forest.h"

// Flags of a node. A test is one of SL_LT ... SL_EQ, or SL_IN for a list of categories.
enum { SL_LT, SL_LE, SL_GT, SL_GE, SL_EQ, SL_IN, SL_TEST = 7, SL_DEFAULT_LEFT = 8, SL_LIST_RIGHT = 16 };

// A node. left < 0: it is a leaf, of one value, or where count is not 0 of as many from vector[list] on.
#define SL_NODE(real)                                            \
  struct {                                                       \
    real value;       /* threshold; of a leaf its value */       \
    int32_t feature;  /* that is tested */                       \
    int32_t left;     /* child, counted from the tree's root */  \
    int32_t right;                                               \
    uint32_t flags;                                              \
    uint32_t count;   /* of categories, or of a leaf's values */ \
    uint64_t list;    /* where they begin */                     \
  }

typedef SL_NODE(float) sl_node32;
typedef SL_NODE(double) sl_node64;

#define SL_MAGIC UINT64_C(0x3174736572666c73)

// Bounds on what a file may have.
#define SL_MOST_OUTPUTS (1 << 20)           // targets x classes
#define SL_MOST_ITEMS (UINT64_C(1) << 31)   // trees, nodes of all, values of leaves, categories

// sl_forest_lay gives the places of a block's arrays and returns its size in bytes; 0: its head is out of bounds.
size_t sl_forest_lay(void *block, const sl_head *head, sl_forest *f);

// sl_forest_fail writes a text and returns -1.
int sl_forest_fail(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
