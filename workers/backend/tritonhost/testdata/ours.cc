// Our own header, with the same numbers.
#include "abi.h"
#include "numbers.h"
