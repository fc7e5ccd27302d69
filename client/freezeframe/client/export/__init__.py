"""Stacks and profiles of a snapshot in the formats of the viewers that people use: functions of a wire message.

One format per file, each from the same list of stacks; nothing here does I/O.
"""
