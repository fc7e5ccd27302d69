"""Ways to an agent of another machine: each gives a socket of this one, or a channel, for as long as it is held."""
