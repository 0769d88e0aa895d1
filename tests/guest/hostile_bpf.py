# SPDX-License-Identifier: GPL-2.0
"""BPF policies that the kernel or the helper must refuse, each with a word of the error message."""

from __future__ import annotations

from typing import NamedTuple


class Hostile(NamedTuple):
    """A BPF policy that must be refused when it is loaded."""

    why: str  # part of the error line that the user must see
    body: str = ""
    before: str = ""
    more: str = ""  # further members of the policy
    text: str = ""  # replaces the whole source

    def source(self) -> str:
        """Return the complete C source of the policy."""
        return self.text or SOURCE % (self.before, self.body, self.more)


SOURCE = """
#include "mmpolicy.bpf.h"
%s
MMP_ORDER(order)
{
	%s
	return MMP_ANSWER(0, MMP_CAP);
}
MMP_POLICY(hostile, .order = (void *)order, .max_order = 4%s);
"""
# The source of a policy that is written without the macro MMP_ORDER(), so that it gets its
# arguments as an array.
BARE = """
#include "mmpolicy.bpf.h"
SEC("struct_ops%s/order")
__u32 order(unsigned long long *ctx)
{
	return %s;
}
MMP_POLICY(hostile, .order = (void *)order, .max_order = 4);
"""
# The source of a policy of another hook point, which calls a kfunc of anon_order. It passes the
# context of its own point, which the verifier must refuse.
ELSEWHERE = """
#include "mmpolicy.bpf.h"
MMP_%s(hostile)
{
	return mmp_bpf_full((const void *)%s, 0, 14);
}
MMP_POLICY_OF(%s, policy, .name = "hostile", .%s = (void *)hostile);
"""
KEPT = "static const struct mmp_fault *volatile kept;"
VALUE = """
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1);
__type(key, __u32); __type(value, struct mmp_fault); } values SEC(".maps");
"""
AT_ZERO = "__u32 zero = 0; struct mmp_fault *made = bpf_map_lookup_elem(&values, &zero);"
KERNEL_FUNCTION = "calls a function of the kernel"
NO_HELPER = "cannot use helper"
POINTER = "STRUCT mmp_fault"  # "arg#0 pointer type ... must point" before Linux 7.3
# The BPF instruction may_goto as bytes, as in the kernel's own examples, because clang has no name
# for it.
MAY_GOTO = (
    'asm volatile goto("1: .byte 0xe5; .byte 0; .long ((%l[out] - 1b - 8) / 8) & 0xffff; .short 0"'
    " :::: out);"
)
# The BPF instruction that turns a number of the process into a pointer of the kernel, as bytes.
CAST = 'asm volatile("r1 = %0; .byte 0xbf, 0x11; .short 1; .long 1; %0 = r1" : "+r"(at) :: "r1");'
MANY = "#pragma clang loop unroll(disable)\nfor (volatile __u32 i = 0; i < 100000000; i++)"

HOSTILE = {
    # Access to memory
    "writes_fault": Hostile("only read", "((struct mmp_fault *)fault)->address = 1;"),
    "reads_beyond_fault": Hostile("beyond", "return *(volatile __u64 *)((char *)fault + 4096);"),
    "follows_a_number": Hostile("invalid mem", "return *(volatile __u64 *)fault->address;"),
    "reads_beyond_arguments": Hostile("invalid bpf_context", text=BARE % ("", "ctx[1]")),
    "reads_address_zero": Hostile("invalid mem", "return *(volatile __u64 *)8;"),
    # A kfunc must accept only the fault that the module has passed to the policy, no copy of it
    "fault_on_own_stack": Hostile(
        POINTER, "struct mmp_fault made = { .address = 8 }; mmp_bpf_used(&made, 0, 1);"
    ),
    "bytes_on_own_stack": Hostile(
        POINTER, "__u64 made[8] = { 8 }; mmp_bpf_used((void *)made, 0, 1);"
    ),
    "fault_in_a_map": Hostile(
        POINTER, f"{AT_ZERO} if (made) mmp_bpf_full(made, 0, 14);", before=VALUE
    ),
    "fault_kept_for_later": Hostile(
        POINTER, "if (kept) mmp_bpf_used(kept, 0, 1); kept = fault;", before=KEPT
    ),
    "no_fault": Hostile("NULL", "mmp_bpf_used((void *)0, 0, 1);"),
    "middle_of_fault": Hostile(
        "expected pointer", "mmp_bpf_used((const void *)((const char *)fault + 8), 0, 1);"
    ),
    "number_as_fault": Hostile(POINTER, "mmp_bpf_mapped((void *)fault->address, 0, 1);"),
    "error_text_of_its_own": Hostile(
        "const string", "char text[8] = \"no\"; mmp_bpf_error(fault, text);"
    ),
    "question_that_is_none": Hostile(
        "mmp_bpf_nothing",
        "mmp_bpf_nothing(fault);",
        before="extern void mmp_bpf_nothing(const struct mmp_fault *fault) __ksym;",
    ),
    # Programs that take too long
    "endless": Hostile(
        "infinite loop", "while (*(volatile __u64 *)&fault->address != 8);"
    ),
    "helper_that_loops": Hostile(
        NO_HELPER,
        "bpf_loop(1 << 23, turn, 0, 0);",
        before="static long turn(__u64 i, void *data) { return 0; }",
    ),
    "function_of_the_kernel": Hostile(
        KERNEL_FUNCTION,
        "bpf_rcu_read_lock(); bpf_rcu_read_unlock();",
        before="extern void bpf_rcu_read_lock(void) __ksym;\n"
        "extern void bpf_rcu_read_unlock(void) __ksym;",
    ),
    # Loops of newer kernels, of which the verifier does not check each iteration
    "may_goto": Hostile(
        "may_goto", f"__u32 n = 0;\nfor (;;) {{ {MAY_GOTO} n++; }}\nout:\nreturn n;"
    ),
    "may_goto_in_a_function": Hostile(
        "may_goto",
        "return turns(1);",
        before="static __attribute__((noinline)) __u32 turns(__u32 n)\n"
        f"{{\nfor (;;) {{ {MAY_GOTO} n++; }}\nout:\nreturn n;\n}}",
    ),
    "iterator_of_numbers": Hostile(
        KERNEL_FUNCTION,
        "struct bpf_iter_num it; bpf_iter_num_new(&it, 0, 1 << 23);\n"
        "while (bpf_iter_num_next(&it))\n;\nbpf_iter_num_destroy(&it);",
        before="struct bpf_iter_num { __u64 opaque; };",
    ),
    "callback_for_each_element": Hostile(
        NO_HELPER,
        "bpf_for_each_map_elem(&values, turn, 0, 0);",
        before=f"{VALUE}static long turn(void *map, void *key, void *value, void *data)"
        "{ return 0; }",
    ),
    "timer": Hostile(
        NO_HELPER,
        "__u32 zero = 0; struct bpf_timer *timer = bpf_map_lookup_elem(&timers, &zero);\n"
        "if (timer) bpf_timer_init(timer, &timers, 1);",
        before="struct bpf_timer { __u64 opaque[2]; };\n"
        "struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1);"
        '__type(key, __u32); __type(value, struct bpf_timer); } timers SEC(".maps");',
    ),
    "workqueue": Hostile(
        KERNEL_FUNCTION,
        "bpf_wq_start((void *)0, 0);",
        before="struct bpf_wq { __u64 opaque[2]; };\n"
        "extern int bpf_wq_start(struct bpf_wq *wq, unsigned int flags) __ksym;",
    ),
    "exception": Hostile(
        KERNEL_FUNCTION,
        "if (fault->address == 8) bpf_throw(0);",
        before="extern void bpf_throw(__u64 cookie) __ksym;",
    ),
    "arena": Hostile(
        "arena",
        f"void *at = &arena;\n{CAST}\nreturn *(volatile __u32 *)at;",
        before="struct { __uint(type, 33); __uint(map_flags, 1024); __uint(max_entries, 1); }"
        ' arena SEC(".maps");',
    ),
    "sleeps": Hostile("sleeps", text=BARE % (".s", "0")),
    # Helpers of BPF that a policy may not call
    "writes_to_user": Hostile(NO_HELPER, "bpf_probe_write_user((void *)8, &fault, 8);"),
    "reads_the_kernel": Hostile(
        NO_HELPER, "__u64 to; bpf_probe_read_kernel(&to, 8, (void *)fault->address); return to;"
    ),
    "sends_a_signal": Hostile(NO_HELPER, "bpf_send_signal(9);"),
    "calls_others": Hostile(
        NO_HELPER,
        "bpf_tail_call((void *)fault, &others, 0);",
        before='struct { __uint(type, 3); __uint(max_entries, 1); __type(key, __u32);'
        '__type(value, __u32); } others SEC(".maps");',
    ),
    # Names of policies
    "name_of_another": Hostile("of this name", more=', .name = "never"'),
    "name_stock": Hostile("name", more=', .name = "stock"'),
    "name_empty": Hostile("name", more=', .name = ""'),
    "name_a_path": Hostile("name", more=', .name = "../x"'),
    "name_upper": Hostile("name", more=', .name = "Hostile"'),
    "name_too_long": Hostile("name", more=', .name = "abcdefghijklmnop"'),
    "version_later": Hostile("another version", more=", .version = MMP_VERSION + 1"),
    "version_none": Hostile("another version", more=", .version = 0"),
    "max_order_low": Hostile("max_order", more=", .max_order = 1"),
    "max_order_high": Hostile("max_order", more=", .max_order = 10"),
    "flags_unknown": Hostile("flags", more=", .flags = 2"),
    "no_order": Hostile("isn't referenced", more=", .order = (void *)0"),
    # kfuncs that count pages for another hook point than the policy's own
    "pages_of_effort": Hostile(
        "expected pointer", text=ELSEWHERE % ("EFFORT", "effort", "thp_gfp", "effort")
    ),
    "pages_of_compaction": Hostile(
        "expected pointer", text=ELSEWHERE % ("COMPACT", "compaction", "compact", "compact")
    ),
    "point_that_is_none": Hostile(
        "mmp_other_ops",
        text='#include "mmpolicy.bpf.h"\nstruct mmp_other_ops { char name[16]; };\n'
        'SEC(".struct_ops.link") struct mmp_other_ops other = { .name = "other" };\n',
    ),
    "later_member": Hostile(
        "later",
        "return ((struct mmp_fault___later *)fault)->later;",
        before="struct mmp_fault___later { __u64 later; } __attribute__((preserve_access_index));",
    ),
    "later_member_of_policy": Hostile(
        "later",
        text="#define max_order max_order; __u32 later\n"
        '#include "mmpolicy.bpf.h"\n#undef max_order\n'
        + SOURCE.replace('#include "mmpolicy.bpf.h"', "") % ("", "", ", .later = 1"),
    ),
    # Object files without a policy, or with several
    "no_policy": Hostile("no policy", text='#include "mmpolicy.bpf.h"\n'),
    "two_policies": Hostile(
        "several", text=SOURCE % ("", "", "")
        + "MMP_POLICY(second, .order = (void *)order, .max_order = 4);\n",
    ),
    "another_program": Hostile(
        "do not belong to a policy",
        before='SEC("tracepoint/syscalls/sys_exit_brk") int t(void *c) { return 0; }'
    ),
    "other_struct_ops": Hostile(
        "not those",
        text='#include "mmpolicy.bpf.h"\nstruct tcp_congestion_ops { char name[16]; };\n'
        'SEC(".struct_ops.link") struct tcp_congestion_ops other = { .name = "other" };\n',
    ),
}  # fmt: skip
# The source of a policy whose loop is too long: the verifier cannot check it within its time limit.
TAKES_LONG = Hostile("not done", f"__u32 n = 0;\n{MANY} n += mmp_bpf_used(fault, i, 1);\nreturn n;")
