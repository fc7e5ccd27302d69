"""The kernel side of the recorder, and the only importer of bcc.

`*.bpf.c` and `*.h` are GPL-2.0-only (LICENSE in this room): programs on raw tracepoints and tracepoints that read
system call arguments and user memory, and of the kernel saved registers alone. `headers/` is all that BCC needs of a
kernel's headers. `programs` lists what is loaded, `compiler` compiles it, `loader` keeps that, loads and attaches,
`syscalls` and `maps` are bpf(2), `layout` mirrors the shared structs.
May import the standard library, bcc, and of ours `groups` and `host.native.btf`.
"""
