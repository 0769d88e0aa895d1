// SPDX-License-Identifier: GPL-2.0
/*
 * A consumer of page_pool that tests and measures refills, modelled on the idea of
 * tools/testing/selftests/net/bench/page_pool of later kernels.
 *
 * Reading /sys/kernel/debug/mmpolicy_bench runs a load and prints its cost as JSON. Each reader
 * has its own pool. The module's parameters select the load. No page is recycled in the pool,
 * so each page comes from a refill.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/timex.h>
#include <net/page_pool/helpers.h>

#define MOST	192	/* most pages that a burst holds at a time */

/* Pages per burst: constant, as in a NAPI poll, or varying widely. */
static const u16 steady[] = { 64 };
static const u16 bursty[] = { 16, 150, 1, 64, 192, 8, 128, 33 };

static const struct {
	const char *name;
	const u16 *bursts;
	unsigned int nr_bursts;
	bool starved;
} loads[] = {
	{ "steady", steady, ARRAY_SIZE(steady), false },
	{ "bursty", bursty, ARRAY_SIZE(bursty), false },
	{ "starved", steady, ARRAY_SIZE(steady), true },
};

static char *load = "steady";
module_param(load, charp, 0644);
MODULE_PARM_DESC(load, "steady, bursty or starved");

static unsigned int rounds = 1000;
module_param(rounds, uint, 0644);
MODULE_PARM_DESC(rounds, "bursts to take and give back");

static unsigned int single;
module_param(single, uint, 0644);
MODULE_PARM_DESC(single, "1: take the pages from alloc_pages(), without a pool");

static int left = 40;
module_param(left, int, 0644);
MODULE_PARM_DESC(left, "starved: pages above the low watermark of the zone, up to 15 more");

#define CHUNK	4	/* order of the pages that starve a zone; too large for the per-CPU lists */

/**
 * struct run - a load that runs while the debugfs file is read
 * @pool: source of the pages
 * @held: pages of a burst
 * @hog: pages allocated to starve the zones
 * @pages: pages that the bursts got
 * @failed: pages that the bursts did not get
 * @ticks: ticks of get_cycles() spent in allocating @pages
 * @all_ticks: ticks of get_cycles() spent in allocating and freeing @pages
 */
struct run {
	struct page_pool *pool;
	struct page *held[MOST];
	struct list_head hog;
	u64 pages;
	u64 failed;
	u64 ticks;
	u64 all_ticks;
};

static struct page *get_one(const struct run *run)
{
	if (single)
		return alloc_pages_node(numa_mem_id(), GFP_ATOMIC | __GFP_NOWARN, 0);
	return page_pool_dev_alloc_pages(run->pool);
}

/*
 * Returns a page to the pool with a second reference, as if a socket still held
 * it. So the pool releases the page instead of keeping it.
 */
static void put_one(const struct run *run, struct page *page)
{
	if (!single) {
		get_page(page);
		page_pool_put_full_page(run->pool, page, false);
	}
	put_page(page);
}

static void burst(struct run *run, unsigned int pages)
{
	unsigned int i, got = 0;
	cycles_t begin;

	local_bh_disable();
	begin = get_cycles();
	for (i = 0; i < pages; i++) {
		run->held[got] = get_one(run);
		got += !!run->held[got];
	}
	run->ticks += get_cycles() - begin;
	for (i = 0; i < got; i++)
		put_one(run, run->held[i]);
	run->all_ticks += get_cycles() - begin;
	local_bh_enable();
	run->pages += got;
	run->failed += pages - got;
}

/* Returns the flags that allocate pages of this zone, if the kernel has it. */
static gfp_t zone_gfp(enum zone_type type)
{
	switch (type) {
#ifdef CONFIG_ZONE_DMA
	case ZONE_DMA:
		return __GFP_DMA;
#endif
#ifdef CONFIG_ZONE_DMA32
	case ZONE_DMA32:
		return __GFP_DMA32;
#endif
	default:
		return 0;
	}
}

static struct page *hog_one(struct run *run, struct zone *zone)
{
	gfp_t gfp = zone_gfp(zone_idx(zone)) | __GFP_NOWARN | __GFP_THISNODE;
	struct page *page = alloc_pages_node(zone_to_nid(zone), gfp, CHUNK);

	if (page)
		list_add(&page->lru, &run->hog);
	return page;
}

static void unhog_one(struct run *run)
{
	struct page *page = list_first_entry(&run->hog, struct page, lru);

	list_del(&page->lru);
	__free_pages(page, CHUNK);
}

/*
 * Allocates pages of a zone until only @pages are free above its low watermark; frees some of them
 * if fewer are.
 */
static void starve(struct run *run, struct zone *zone, long pages)
{
	pages += low_wmark_pages(zone) + zone->lowmem_reserve[ZONE_NORMAL];
	while ((long)zone_page_state(zone, NR_FREE_PAGES) >= pages + (1L << CHUNK))
		if (!hog_one(run, zone))
			return;
	while (!list_empty(&run->hog) && (long)zone_page_state(zone, NR_FREE_PAGES) < pages)
		unhog_one(run);
}

/*
 * Takes nearly all free pages from each zone that may supply the pool. Only the highest zone keeps
 * some.
 */
static void starve_node(struct run *run)
{
	struct zone *zones = NODE_DATA(numa_mem_id())->node_zones;
	long pages = left;
	int type;

	for (type = ZONE_NORMAL; type >= 0; type--) {
		if (!managed_zone(&zones[type]))
			continue;
		starve(run, &zones[type], pages);
		pages = -MOST;
	}
}

static int run_load(struct run *run)
{
	unsigned int i, n;

	for (i = 0; i < ARRAY_SIZE(loads); i++)
		if (sysfs_streq(load, loads[i].name))
			break;
	if (i == ARRAY_SIZE(loads))
		return -EINVAL;
	for (n = 0; n < rounds && !signal_pending(current); n++) {
		if (loads[i].starved)
			starve_node(run);
		burst(run, loads[i].bursts[n % loads[i].nr_bursts]);
		cond_resched();
	}
	return 0;
}

static struct page_pool *make_pool(void)
{
	const struct page_pool_params params = {
		.pool_size = 64,
		.nid = numa_mem_id(),
	};

	return page_pool_create(&params);
}

/*
 * Prints the result as JSON. "inflight" are the pages that are neither freed
 * nor in the pool's cache.
 */
static void show(struct seq_file *m, const struct run *run)
{
	const struct page_pool *pool = run->pool;
	u32 released = atomic_read(&pool->pages_state_release_cnt);
	u32 hold = pool->pages_state_hold_cnt;

	seq_printf(m, "{\"pages\": %llu, \"failed\": %llu, \"ticks\": %llu, \"all_ticks\": %llu",
		   run->pages, run->failed, run->ticks, run->all_ticks);
	seq_printf(m, ", \"taken\": %u, \"refills\": %llu, \"inflight\": %d}\n",
		   hold, pool->alloc_stats.slow, (s32)(hold - released - pool->alloc.count));
}

static int bench_show(struct seq_file *m, void *unused)
{
	struct run *run = kzalloc(sizeof(*run), GFP_KERNEL);
	int err;

	if (!run)
		return -ENOMEM;
	INIT_LIST_HEAD(&run->hog);
	run->pool = make_pool();
	if (IS_ERR(run->pool)) {
		err = PTR_ERR(run->pool);
		goto free;
	}
	err = run_load(run);
	while (!list_empty(&run->hog))
		unhog_one(run);
	if (!err)
		show(m, run);
	page_pool_destroy(run->pool);
free:
	kfree(run);
	return err;
}
DEFINE_SHOW_ATTRIBUTE(bench);

static struct dentry *file;

static int __init bench_init(void)
{
	file = debugfs_create_file("mmpolicy_bench", 0400, NULL, NULL, &bench_fops);
	return PTR_ERR_OR_ZERO(file);
}
module_init(bench_init);

static void __exit bench_exit(void)
{
	debugfs_remove(file);
}
module_exit(bench_exit);

MODULE_DESCRIPTION("A consumer of page_pool, to test and measure refills with");
MODULE_LICENSE("GPL");
