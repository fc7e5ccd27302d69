/* SPDX-License-Identifier: GPL-2.0-only */
/* BCC rounds the size of some maps up at compile time. */
#define FREEZEFRAME_FILL1(x) ((x) | ((x) >> 1))
#define FREEZEFRAME_FILL2(x) (FREEZEFRAME_FILL1(x) | (FREEZEFRAME_FILL1(x) >> 2))
#define FREEZEFRAME_FILL4(x) (FREEZEFRAME_FILL2(x) | (FREEZEFRAME_FILL2(x) >> 4))
#define FREEZEFRAME_FILL8(x) (FREEZEFRAME_FILL4(x) | (FREEZEFRAME_FILL4(x) >> 8))
#define FREEZEFRAME_FILL16(x) (FREEZEFRAME_FILL8(x) | (FREEZEFRAME_FILL8(x) >> 16))
#define roundup_pow_of_two(n) (FREEZEFRAME_FILL16((n) - 1) + 1)
