"""A snapshot in the formats of the viewers and databases that people use: functions of a wire message.

One format per file, those of stacks from the same list of them; nothing here does I/O.
"""
