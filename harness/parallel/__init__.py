"""Context and tensor parallelism: who holds what, and every collective that moves it."""
