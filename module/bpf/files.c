// SPDX-License-Identifier: GPL-2.0
/*
 * The sysfs directory "bpf": shows whether programs can be loaded, and the
 * loaded ones. Also loads and unloads all of module/bpf.
 */
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/sysfs.h>

#include "bpf.h"

static struct kobject *bpf_dir, *slot_dirs[MMP_BPF_SLOTS];
static const char *bpf_lacks;

static ssize_t available_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	if (bpf_lacks)
		return sysfs_emit(buf, "unavailable: %s\n", bpf_lacks);
	return sysfs_emit(buf, "available\n");
}

static struct kobj_attribute available_attr = __ATTR_RO(available);

static void files_look(const struct kobject *kobj, struct mmp_bpf_facts *facts)
{
	unsigned int slot = 0;

	while (slot < MMP_BPF_SLOTS - 1 && slot_dirs[slot] != kobj)
		slot++;
	mmp_bpf_look(slot, facts);
}

#define SLOT_FILE(_name, _format)						\
static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf) \
{										\
	struct mmp_bpf_facts facts;						\
										\
	files_look(kobj, &facts);						\
	return sysfs_emit(buf, _format "\n", facts._name);			\
}										\
static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

SLOT_FILE(name, "%s");
SLOT_FILE(point, "%s");
SLOT_FILE(program, "%u");
SLOT_FILE(clamped, "%llu");
SLOT_FILE(error, "%s");

static const struct attribute *const slot_files[] = {
	&name_attr.attr,
	&point_attr.attr,
	&program_attr.attr,
	&clamped_attr.attr,
	&error_attr.attr,
	NULL
};

static int files_add_slot(unsigned int nr)
{
	char name[8];

	snprintf(name, sizeof(name), "slot%u", nr);
	slot_dirs[nr] = kobject_create_and_add(name, bpf_dir);
	return slot_dirs[nr] ? sysfs_create_files(slot_dirs[nr], slot_files) : -ENOMEM;
}

/**
 * mmp_bpf_init - register struct_ops and kfuncs, so that programs can be loaded
 * @parent: parent of the directory bpf
 *
 * Return: 0, also on a kernel without BPF; or an error. mmp_bpf_exit() cleans up in either
 *	case.
 */
int mmp_bpf_init(struct kobject *parent)
{
	int err, i;

	bpf_lacks = mmp_bpf_lacks(THIS_MODULE);
	mmp_bpf_slots_init(bpf_lacks);
	bpf_dir = kobject_create_and_add("bpf", parent);
	if (!bpf_dir)
		return -ENOMEM;
	err = sysfs_create_file(bpf_dir, &available_attr.attr);
	for (i = 0; i < MMP_BPF_SLOTS && !err; i++)
		err = files_add_slot(i);
	if (err || !MMP_BPF || bpf_lacks)
		return err;
	return mmp_bpf_questions_init() ?: mmp_bpf_ops_init();
}

/*
 * Unloads module/bpf. No program is loaded any longer, as each holds a
 * reference to the module.
 */
void mmp_bpf_exit(void)
{
	for (int i = 0; i < MMP_BPF_SLOTS; i++)
		kobject_put(slot_dirs[i]);
	kobject_put(bpf_dir);
	if (MMP_BPF)
		mmp_bpf_ops_exit();
	mmp_bpf_slots_exit();
}
