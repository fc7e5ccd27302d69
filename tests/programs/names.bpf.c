/* SPDX-License-Identifier: GPL-2.0-only */
/* Which files some processes, and all that come of them, open, run, make, rename or remove: each name once, with how
   often. A name is read where its call ends: by then the kernel has read it too, so its page is there. */

#include "registers.h"

struct used {
  u32 kind; /* of the process, as user space gave it */
  u32 call; /* number of the system call; 59 (execve) also for a program that runs */
  u32 below; /* whether the name counts from a directory that the call names by a descriptor */
  char name[228];
};

/* Process -> kind. User space inserts the first ones, a fork its child; a thread that ends deletes its own. */
BPF_TABLE("hash", u32, u32, followed, 16384);
/* How often. Read by user space. */
BPF_TABLE("hash", struct used, u64, names, 65536);
/* Names that found no room, or could not be read. */
BPF_TABLE("array", u32, u64, lost, 1);

static __always_inline u32 kind_of_this(void) {
  u32 tgid = bpf_get_current_pid_tgid() >> 32;
  u32 *kind = followed.lookup(&tgid);
  return kind ? *kind : 0;
}

static __always_inline void count(struct used *u) {
  u64 none = 0, *times = names.lookup_or_try_init(u, &none);
  if (times)
    __sync_fetch_and_add(times, 1);
  else
    lost.increment(0);
}

#define HERE -100 /* AT_FDCWD: the working directory */

static __always_inline void use(u32 kind, u32 call, u64 directory, u64 name) {
  struct used u = {.kind = kind, .call = call, .below = (int)directory != HERE};
  if (bpf_probe_read_user_str(u.name, sizeof(u.name), (void *)name) < 0)
    lost.increment(0);
  else
    count(&u);
}

int on_sys_exit(struct bpf_raw_tracepoint_args *ctx) {
  u64 saved = ctx->args[0];
  u32 kind = kind_of_this();
  if (!kind)
    return 0;
  u32 call = REGISTER(ORIG_AX);
  switch (call) {
  case 59: /* execve: when it did what it should, the name is gone, and on_exec has it */
    if ((long)ctx->args[1] == 0)
      break;
  case 2: case 76: case 83: case 84: case 85: case 87: case 90: case 92: case 94: case 133:
    /* open, truncate, mkdir, rmdir, creat, unlink, chmod, chown, lchown, mknod */
    use(kind, call, HERE, REGISTER(DI));
    break;
  case 82: case 86: case 88: /* rename, link, symlink */
    use(kind, call, HERE, REGISTER(DI));
    use(kind, call, HERE, REGISTER(SI));
    break;
  case 322: /* execveat: as execve */
    if ((long)ctx->args[1] == 0)
      break;
  case 257: case 258: case 259: case 260: case 263: case 268: case 437: case 452:
    /* openat, mkdirat, mknodat, fchownat, unlinkat, fchmodat, openat2, fchmodat2 */
    use(kind, call, REGISTER(DI), REGISTER(SI));
    break;
  case 264: case 265: case 316: /* renameat, linkat, renameat2 */
    use(kind, call, REGISTER(DI), REGISTER(SI));
    use(kind, call, REGISTER(DX), REGISTER(R10));
    break;
  case 266: /* symlinkat */
    use(kind, call, HERE, REGISTER(DI));
    use(kind, call, REGISTER(SI), REGISTER(DX));
    break;
  }
  return 0;
}

TRACEPOINT_PROBE(sched, sched_process_exec) {
  struct used u = {.kind = kind_of_this(), .call = 59};
  if (!u.kind)
    return 0;
  bpf_probe_read_kernel_str(u.name, sizeof(u.name), (void *)args + (args->data_loc_filename & 0xffff));
  count(&u);
  return 0;
}

TRACEPOINT_PROBE(sched, sched_process_fork) {
  u32 kind = kind_of_this(), child = args->child_pid;
  if (kind)
    followed.update(&child, &kind);
  return 0;
}

TRACEPOINT_PROBE(sched, sched_process_exit) {
  u32 tid = bpf_get_current_pid_tgid();
  followed.delete(&tid);
  return 0;
}
