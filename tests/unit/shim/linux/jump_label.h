/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_JUMP_LABEL_H
#define SHIM_JUMP_LABEL_H

struct static_key_false {
	int enabled;
};

#define DECLARE_STATIC_KEY_FALSE(name)	extern struct static_key_false name

#define static_branch_unlikely(key)	((key)->enabled)

#endif /* SHIM_JUMP_LABEL_H */
