// SPDX-License-Identifier: GPL-2.0
/*
 * replay PROGRAM...: replays recorded first touches of programs under a policy
 * in BPF, and under never, fixed (64 kB) and adaptive for comparison.
 *
 * The source of the policy is compiled for user space. The module's code
 * answers its kfuncs about page tables, from the tables of the simulated
 * process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/bpf.h"
#include "check.h"
#include "layout.h"
#include "replay.h"

enum { MAX_ORDER };

#define FREE_BLOCKS	(1ULL << 20)	/* there is always enough memory */

extern const struct mmp_bpf_ops mmp_replayed;	/* as author.c has it: without prog */

static const unsigned long layout[] = MMP_LAYOUT;
extern const unsigned long mmp_authors_layout[];

static struct sim *running;
static const char *failed;

u64 mmp_bpf_free(const struct mmp_told *told, u32 order)
{
	return FREE_BLOCKS >> order;
}

/* The program is alone in its cgroup. */
u64 mmp_bpf_cgroup_pages(const struct mmp_told *told)
{
	return running->mm.anon_pages;
}

u32 mmp_bpf_pressure(const struct mmp_told *told)
{
	return 0;
}

void mmp_bpf_fail(const void *ops, const char *text)
{
	failed = failed ?: text;
}

void test_failed(const char *file, int line, const char *what, double a, double b)
{
	fprintf(stderr, "%s:%d: %s: %g, %g\n", file, line, what, a, b);
	exit(1);
}

/*
 * Calls the program like module/bpf/ask.c. After an error of the program, all
 * faults get single pages.
 */
static struct mmp_decision replayed(const struct vm_fault *vmf, enum mm_policy_site site,
				    const u32 *knob)
{
	const struct mmp_fault fault = mmp_bpf_fault(vmf, site, &mmp_replayed, knob);
	unsigned long long args[] = { (unsigned long)&fault };
	u32 (*order)(unsigned long long *args) = (void *)mmp_replayed.ask;
	bool cut;

	if (failed || (mmp_replayed.flags & MMP_BPF_IF_NEAR && !mmp_anon_order_near(vmf)))
		return (struct mmp_decision){ .reason = MMP_NO_NEIGHBOUR };
	return mmp_bpf_decision(&mmp_replayed, order(args), &cut);
}

static unsigned int replayed_cap(const struct vm_area_struct *vma, const u32 *knob)
{
	return mmp_replayed.max_order;
}

static struct mmp_knob knobs[MMP_BPF_KNOBS];
static struct mmp_policy policy = {
	.name = mmp_replayed.name, .point = MM_POLICY_ANON_ORDER, .knobs = knobs,
	.nr_knobs = MMP_BPF_KNOBS, .anon_order = replayed, .cap = replayed_cap,
};

static void show(const char *program, const char *recording, const struct mmp_policy *policy,
		 bool has_cap)
{
	struct sim sim;

	sim_init(&sim, policy);
	if (has_cap)
		sim.knob[MAX_ORDER] = 4;
	sim.mm.elsewhere = 0;
	running = &sim;
	replay(&sim, recording);
	printf("%-16s %-16s %8lu %9.1f\n", program, policy->name, sim.faults,
	       sim.peak / 256.0);
	sim_free(&sim);
}

int main(int argc, char **argv)
{
	if (memcmp(layout, mmp_authors_layout, sizeof(layout))) {
		fprintf(stderr, "mmpolicy.bpf.h lays out struct mmp_fault as the module does not\n");
		return 1;
	}
	printf("%-16s %-16s %8s %9s\n", "PROGRAM", "POLICY", "FAULTS", "MEMORY MB");
	for (int i = 0; i < MMP_BPF_KNOBS; i++)
		knobs[i].def = mmp_replayed.knobs[i].def;
	for (int i = 1; i < argc; i++) {
		char path[512], *text;

		snprintf(path, sizeof(path), "%s/%s", RECORDED, argv[i]);
		text = read_text(path);
		show(argv[i], text, &mmp_policy_anon_order_never, false);
		show(argv[i], text, &mmp_policy_anon_order_fixed, true);
		show(argv[i], text, &mmp_policy_anon_order_adaptive, true);
		show(argv[i], text, &policy, false);
		free(text);
	}
	if (failed)
		fprintf(stderr, "%s gave up: %s\n", policy.name, failed);
	return failed ? 1 : 0;
}
