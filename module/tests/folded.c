// SPDX-License-Identifier: GPL-2.0
/*
 * For tests alone: reads the page table entries of a process, without helpers
 * of the kernel that change or combine them. A PID written to the debugfs file
 * mmpolicy_folded selects the process, and reading the file prints four counts
 * of the first and last blocks of its large anonymous folios:
 *
 * "blocks": all such blocks. "folded": the folded ones. "witnesses": those in
 * which the first or last page of the folio has a clear accessed bit, and all
 * inner pages have it set. "wrong": blocks that are both, which must not exist.
 *
 * Each block is read under the lock of its page table. With plant=1, the module
 * first clears the accessed bit of the first page of each folded block, to
 * check that the test finds it.
 */
#include <linux/debugfs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>

static bool plant;
module_param(plant, bool, 0600);

static struct { unsigned long blocks, folded, witnesses, wrong; } seen;
static struct dentry *file;

static void folded_block(pte_t *pte)
{
	struct folio *folio = page_folio(pte_page(READ_ONCE(*pte)));
	unsigned long first = pte_pfn(READ_ONCE(*pte)) - folio_pfn(folio);
	bool folded = false, old, inner = true;
	int i;

	if (!folio_test_anon(folio) || folio_nr_pages(folio) < CONT_PTES || first % CONT_PTES ||
	    (first && first + CONT_PTES != folio_nr_pages(folio)))
		return;
	for (i = 0; i < CONT_PTES; i++) {
		pte_t entry = READ_ONCE(pte[i]);

		if (!pte_valid(entry) || page_folio(pte_page(entry)) != folio)
			return;
		folded |= pte_cont(entry);
		inner &= !i || i == CONT_PTES - 1 || pte_young(entry);
	}
	if (plant && folded)
		__ptep_test_and_clear_young(NULL, 0, pte);
	old = (!first && !pte_young(READ_ONCE(*pte))) ||
	      (first + CONT_PTES == folio_nr_pages(folio) &&
	       !pte_young(READ_ONCE(pte[CONT_PTES - 1])));
	seen.blocks++;
	seen.folded += folded;
	seen.witnesses += old && inner;
	seen.wrong += old && inner && folded;
}

static void folded_table(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *at, pmd;
	pte_t *pte;
	spinlock_t *lock;	/* of the page table */
	int i;

	if (pgd_none(READ_ONCE(*pgd)))
		return;
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(READ_ONCE(*p4d)))
		return;
	pud = pud_offset(p4d, addr);
	if (pud_none(READ_ONCE(*pud)) || pud_leaf(READ_ONCE(*pud)))
		return;
	at = pmd_offset(pud, addr);
	pmd = pmdp_get_lockless(at);
	if (!pmd_present(pmd) || pmd_leaf(pmd))
		return;
	lock = pte_lockptr(mm, &pmd);
	spin_lock(lock);
	if (pmd_same(pmd, pmdp_get_lockless(at))) {
		pte = (pte_t *)pmd_page_vaddr(pmd);
		for (i = 0; i < PTRS_PER_PTE; i += CONT_PTES)
			if (pte_valid(READ_ONCE(pte[i])) && !pte_special(READ_ONCE(pte[i])))
				folded_block(pte + i);
	}
	spin_unlock(lock);
}

static void folded_mm(struct mm_struct *mm)
{
	struct vm_area_struct *vma;
	unsigned long addr = 0;

	mmap_read_lock(mm);
	while ((vma = find_vma(mm, addr))) {
		addr = max(addr, vma->vm_start);
		if (!vma_is_anonymous(vma) || (vma->vm_flags & VM_SPECIAL)) {
			addr = vma->vm_end;
			continue;
		}
		folded_table(mm, addr);
		addr = ALIGN_DOWN(addr, PMD_SIZE) + PMD_SIZE;
		cond_resched();
	}
	mmap_read_unlock(mm);
}

static ssize_t folded_write(struct file *f, const char __user *from, size_t size, loff_t *pos)
{
	struct task_struct *task;
	struct mm_struct *mm = NULL;
	int pid, err = kstrtoint_from_user(from, size, 0, &pid);

	if (err)
		return err;
	scoped_guard(rcu) {
		task = pid_task(find_vpid(pid), PIDTYPE_PID);
		mm = task ? get_task_mm(task) : NULL;
	}
	if (!mm)
		return -ESRCH;
	folded_mm(mm);
	mmput(mm);
	return size;
}

static int folded_show(struct seq_file *m, void *v)
{
	seq_printf(m, "blocks %lu folded %lu witnesses %lu wrong %lu\n", seen.blocks, seen.folded,
		   seen.witnesses, seen.wrong);
	memset(&seen, 0, sizeof(seen));
	return 0;
}

DEFINE_SHOW_STORE_ATTRIBUTE(folded);

static int __init folded_init(void)
{
	file = debugfs_create_file("mmpolicy_folded", 0600, NULL, NULL, &folded_fops);
	return PTR_ERR_OR_ZERO(file);
}

static void __exit folded_exit(void)
{
	debugfs_remove(file);
}

module_init(folded_init);
module_exit(folded_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Looks at folded page table entries, for tests");
