"""What a search for a latency is told of a network: times and errors of every choice, and what a whole assignment gives."""
