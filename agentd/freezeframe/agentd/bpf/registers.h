/* SPDX-License-Identifier: GPL-2.0-only */
/* The arguments of a system call, in the registers that it was made with. x86-64. */
#ifndef FREEZEFRAME_REGISTERS_H
#define FREEZEFRAME_REGISTERS_H

struct registers { u64 r10, r9, r8, ax, cx, dx, si, di, orig_ax; };
#define R10_IN_PT_REGS 56

#endif
