"""What leaves the host in a bug report: a snapshot without secrets, as an issue, a page or an archive of both.

`secrets` finds secrets in text (seen through `views`), `redact` and `anonymise` give a snapshot without them and
without names, `outgoing` does all that is asked, `issue`, `page` and `bundle` lay it out. All pure; it may import
`freezeframe.v1`, `judge.file`, `render` and `export`, never the network or an agent.
"""
