"""Points that Optuna chooses by what earlier ones gave, in a study that several processes share and a killed one goes on with."""
