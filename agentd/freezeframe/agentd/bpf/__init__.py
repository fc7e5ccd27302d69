"""The kernel side of the recorder, and the only importer of bcc.

`*.bpf.c` and `*.h` are GPL-2.0-only (LICENSE in this room): programs on raw tracepoints and tracepoints that read
system call arguments and user memory, never a kernel struct. `headers/` is all that BCC needs of a kernel's headers.
`loader` compiles and attaches, `features` says what this kernel lets us do, `layout` mirrors the shared structs.
May import the standard library, `agentd.errors` and bcc.
"""
