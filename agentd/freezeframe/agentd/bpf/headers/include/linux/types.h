/* SPDX-License-Identifier: GPL-2.0-only */
/* The types that BCC's own headers and our programs use; stands in for a kernel's include/linux/types.h. */
#ifndef FREEZEFRAME_TYPES_H
#define FREEZEFRAME_TYPES_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;

typedef __s8 s8;
typedef __u8 u8;
typedef __s16 s16;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;

typedef __u16 __le16;
typedef __u16 __be16;
typedef __u32 __le32;
typedef __u32 __be32;
typedef __u64 __le64;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;

typedef s8 int8_t;
typedef u8 uint8_t;
typedef s16 int16_t;
typedef u16 uint16_t;
typedef s32 int32_t;
typedef u32 uint32_t;
typedef s64 int64_t;
typedef u64 uint64_t;
typedef unsigned long uintptr_t;
typedef unsigned long size_t;
typedef long ssize_t;
typedef int pid_t;
typedef long long loff_t;
typedef unsigned int umode_t;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define __packed __attribute__((packed))
#define __maybe_unused __attribute__((unused))
#define __always_inline inline __attribute__((always_inline))
#define __inline inline
#define barrier() __asm__ __volatile__("" : : : "memory")

#endif
