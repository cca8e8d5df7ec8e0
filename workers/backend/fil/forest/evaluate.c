//go:build cgo

#include <math.h>

#include "layout.h"

#define BLOCK 64  // rows

#define REAL float
#define NODE sl_node32
#define EXACT 16777216.0f
#define NAME(x) x##32
#define MATH(x) x##f
#include "evaluate.inc"
#undef REAL
#undef NODE
#undef EXACT
#undef NAME
#undef MATH

#define REAL double
#define NODE sl_node64
#define EXACT 4294967295.0
#define NAME(x) x##64
#define MATH(x) x
#include "evaluate.inc"

void sl_forest_sum(const sl_forest *f, const void *input, uint64_t rows, void *output) {
  if (f->head->wide)
    sum64(f, input, rows, output);
  else
    sum32(f, input, rows, output);
}

void sl_forest_post(const sl_forest *f, uint64_t rows, void *output) {
  if (f->head->wide)
    post64(f, rows, output);
  else
    post32(f, rows, output);
}
