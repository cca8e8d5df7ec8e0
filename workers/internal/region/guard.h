#ifndef SLUICE_REGION_GUARD_H
#define SLUICE_REGION_GUARD_H

#include <stddef.h>

// sl_guard_install puts the handler of SIGBUS in front of the one that is there, once.
// 0, or what errno says.
int sl_guard_install(void);

// sl_guard_add lets faults in a mapping be survived; -1: there is no room. The mapping
// begins and ends with its pages.
int sl_guard_add(void *base, size_t size);

// sl_guard_bad says that a fault was survived.
int sl_guard_bad(int index);

// sl_guard_remove ends it. Nobody touches the mapping any more.
void sl_guard_remove(int index);

#endif
