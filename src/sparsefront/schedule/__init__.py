"""When masks change: once before recovery, or step by step while it trains."""
