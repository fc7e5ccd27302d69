/* SPDX-License-Identifier: GPL-2.0-only */
/* The arguments of a system call, in the registers that it was made with. x86-64. */
#ifndef FREEZEFRAME_REGISTERS_H
#define FREEZEFRAME_REGISTERS_H

struct registers { u64 r10, r9, r8, ax, cx, dx, si, di, orig_ax; };
#define R10_IN_PT_REGS 56

#define R10 0
#define DX 5
#define SI 6
#define DI 7
#define ORIG_AX 8

/* A register of `saved`. */
#ifdef TYPED_REGISTERS
/* Whose type the verifier knows: it checks each place. */
#define REGISTER(at) (*(volatile u64 *)(saved + R10_IN_PT_REGS + 8 * (at)))
#else
#define REGISTER(at) saved_register(saved, at)
static __always_inline u64 saved_register(u64 saved, u32 at) {
  u64 value = 0;
  bpf_probe_read_kernel(&value, sizeof(value), (void *)(saved + R10_IN_PT_REGS + 8 * at));
  return value;
}
#endif

#endif
