"""The thin client: asks agents, lays out what they answer. Decides nothing.

It knows `freezeframe.judge` and `freezeframe.v1`, never `freezeframe.agentd`. What costs start-up time (grpc, protobuf,
rich) is imported by the command that needs it, not here.
"""
