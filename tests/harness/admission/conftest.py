from hypothesis import HealthCheck, Phase, settings

# A busy machine makes one example slow; that is no finding. A mutant has to be found, not explained.
settings.register_profile("admission", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "mutants",
    settings.get_profile("admission"),
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("admission")
