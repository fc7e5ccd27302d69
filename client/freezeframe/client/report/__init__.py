"""What leaves the host in a bug report: a snapshot without secrets, laid out as an issue.

`secrets` finds secrets in text (seen through `views`), `redact` gives a snapshot without them. All pure; it may import
`freezeframe.v1` and `render`, never the network or an agent.
"""
