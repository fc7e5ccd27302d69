"""Snapshots of one or many hosts -> Facts: pure."""
