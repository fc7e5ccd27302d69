"""The daemon: runs as root on the host, captures everything at one instant, stops nothing."""
