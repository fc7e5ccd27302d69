"""The thin client: asks agents, lays out what they answer. Decides nothing."""
