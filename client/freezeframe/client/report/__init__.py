"""What leaves the host in a bug report: a snapshot without secrets, laid out as an issue, alone or in an archive.

`secrets` finds secrets in text (seen through `views`), `redact` and `anonymise` give a snapshot without them and
without names, `outgoing` does all that is asked, `issue` and `bundle` lay it out. All pure; it may import
`freezeframe.v1`, `judge.file` and `render`, never the network or an agent.
"""
