/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_SLAB_H
#define SHIM_SLAB_H

#include <stdlib.h>

#define kvcalloc(n, size, flags)	calloc(n, size)
#define kvfree(pointer)			free(pointer)

#endif /* SHIM_SLAB_H */
