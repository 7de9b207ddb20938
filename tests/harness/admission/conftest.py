from hypothesis import settings

# A busy machine makes one example slow; that is no finding.
settings.register_profile("admission", deadline=None)
settings.load_profile("admission")
