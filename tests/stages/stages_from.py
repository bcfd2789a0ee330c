"""Which stages are made again where a stage is: itself, and all that come after it."""

FROM_MEASURE = {"measure", "result"}
FROM_SWAP = {"swap"} | FROM_MEASURE
FROM_EXPORT = {"export"} | FROM_SWAP
FROM_RECOVER = {"recover"} | FROM_EXPORT
FROM_PRUNE = {"prune"} | FROM_RECOVER
ALL = {"dense", "dense_quality"} | FROM_PRUNE
