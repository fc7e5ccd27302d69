"""Reading CPython 3.10 to 3.14 from outside: interpreter, threads, asyncio tasks. Imports host's memory reader only.

    symbols       dynamic symbols of a mapped ELF file, from the target's memory
    tables        offsets of each version, written by packaging/cpython/make_tables.py
    interpreter   finds the interpreter and its layout, checks it
    objects       strings, types, containers, instance attributes
    code          code objects and the line of an instruction
    frames        code objects, suspended frames, locals
    task_set      all tasks of a process
    tasks         asyncio tasks and their await chains
    edges         which task waits for which
    serving       connection and request that a task serves
    locks         asyncio locks that tasks have or wait for
    threads       Python threads, their stacks, the interpreter lock

Everything read is hostile and of several moments: each reader checks what it gets and raises UnreadableMemoryError,
never guesses. x86-64, builds with an interpreter lock; only the main interpreter of a process is looked at.
"""
