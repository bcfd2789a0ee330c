"""What masks are made of: groups of weights, which of them survive, and the order in which a layer obeys its pattern."""
