"""Captures that happen by themselves: at times, and when a condition on what the recorder sees holds.

`schedule`, `conditions`, `triggers` and `times` are pure; `readings` keeps what a worker hands over every second;
`files` does the disk's work; `runner` ties them together in the front. None of it reads a target.
"""
