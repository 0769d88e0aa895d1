/* SPDX-License-Identifier: GPL-2.0 */
#ifndef SHIM_BITMAP_H
#define SHIM_BITMAP_H

#define DECLARE_BITMAP(name, bits)	unsigned long name[((bits) + 63) / 64]

#define __set_bit(bit, map)	((map)[(bit) / 64] |= 1UL << (bit) % 64)
#define __clear_bit(bit, map)	((map)[(bit) / 64] &= ~(1UL << (bit) % 64))

static inline unsigned long find_next_bit(const unsigned long *map, unsigned long bits,
					  unsigned long from)
{
	while (from < bits && !(map[from / 64] >> from % 64 & 1))
		from++;
	return from;
}

#define find_first_bit(map, bits)	find_next_bit(map, bits, 0)

#endif /* SHIM_BITMAP_H */
