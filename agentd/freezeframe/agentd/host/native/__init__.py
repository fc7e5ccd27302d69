"""Native stacks of other processes, without stopping them.

Registers come from a BPF iterator over tasks, stack bytes from process_vm_readv, unwinding is libdw's on ELF files that
are opened through /proc/PID/map_files; names come from the files' own symbol tables. libdw and ELF files of a target
are hostile input to C code: all of this runs in a worker that may be lost.
"""
