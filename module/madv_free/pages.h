/* SPDX-License-Identifier: GPL-2.0 */
/* Counts mapped and lazily freed pages in page tables. */
#ifndef MMPOLICY_PAGES_H
#define MMPOLICY_PAGES_H

struct mm_struct;
struct vm_area_struct;

unsigned long mmp_pages_mapped(struct mm_struct *mm, unsigned long addr,
			       unsigned long *end, bool look);
unsigned long mmp_pages_lazy_at(struct vm_area_struct *vma, unsigned long addr,
				unsigned long *end);
bool mmp_pages_pinned(struct mm_struct *mm, unsigned long addr, unsigned long end);
unsigned long mmp_pages_lazy(struct mm_struct *mm, unsigned long start,
			     unsigned long end);

#endif /* MMPOLICY_PAGES_H */
