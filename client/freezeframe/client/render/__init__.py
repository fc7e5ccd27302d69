"""Lays out wire messages as text, JSON, Markdown or five lines. Returns strings; only the command line prints.

`sections` says what of a snapshot is shown, as blocks; `text` and `markdown` lay blocks out; `json` and `brief` read
the message itself. It may import `freezeframe.v1`, never the network or an agent, and decides nothing.
"""
