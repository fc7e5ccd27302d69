"""The everyday test bed: the real sglang-router between a harness and engine stand-ins, with wedges that can be entered
and left.

Programs that run as processes of the bed are in ``programs/``; nothing here imports freezeframe. See README.md for
what each wedge looks like from outside.
"""
