// Triton's headers, and our prototypes behind them.
#include <cstddef>
#include <cstdint>
#include "triton/core/tritonbackend.h"
#include "functions.h"
#include "numbers.h"

static_assert(TRITONBACKEND_API_VERSION_MAJOR == 1 && TRITONBACKEND_API_VERSION_MINOR == 19, "version");
static_assert(TRITONSERVER_API_VERSION_MAJOR == 1 && TRITONSERVER_API_VERSION_MINOR == 34, "version");
