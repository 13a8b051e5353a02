// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reading kernel objects on kernels, or in places, where the verifier gives no typed pointer. */
#ifndef CAKECTL_PEEK_H
#define CAKECTL_PEEK_H

#include "maps.h"

/* The address of a kernel object as a number. Going through a map makes the verifier forget that it
 * is a pointer, whose fields it would not let be read.
 */
static __always_inline void *address_of(void *object)
{
	__u32 zero = 0;
	void *volatile *slot = bpf_map_lookup_elem(&scratch, &zero);

	/* An array of one entry always has it. */
	if (!slot)
		return NULL;
	*slot = object;
	return *slot;
}

#endif
