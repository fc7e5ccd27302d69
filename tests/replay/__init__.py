"""Snapshots of known wedges and of health, judged again: what the verdict says of cases that were not tuned for."""
