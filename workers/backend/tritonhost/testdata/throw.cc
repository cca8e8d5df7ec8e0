// An exception that leaves a backend.
#include <stdexcept>

extern "C" void probe_throw() { throw std::runtime_error("thrown by the probe"); }
