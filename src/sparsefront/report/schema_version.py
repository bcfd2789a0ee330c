"""Which version of the result this program writes, and what each brought."""

# 2: the parameters of every part in Choice. 3: variants and the curve in Speed, resident bytes in Size. 4: collapsed
# layers, what decides whether two results are comparable, checkpoint. 5: names of today (`renamed_fields`). 6: metrics of the
# held-out part, the seed of the recovery, outcomes, budgets, the dense network trained on, val_seen. 7: digests of masks, files
# and record. 8: digest of the data. 9: kernels of norms. Fields are only ever added or renamed, so results of older versions
# are read as well.
SCHEMA_VERSION = 9
