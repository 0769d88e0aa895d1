/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_LIST_H
#define SHIM_LIST_H

struct list_head {
	struct list_head *next, *prev;
};

#endif /* SHIM_LIST_H */
