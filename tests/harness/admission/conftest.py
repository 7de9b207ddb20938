from hypothesis import Phase, settings

# A busy machine makes one example slow; that is no finding. A mutant has to be found, not explained.
settings.register_profile("admission", deadline=None)
settings.register_profile("mutants", deadline=None, database=None, phases=[Phase.explicit, Phase.generate])
settings.load_profile("admission")
