"""From measured cells to a cost table, its gates and its certificate: pure functions, the same bytes everywhere.

Nothing here adds floating-point numbers in an order that a library may choose. Sums are `math.fsum` (exactly rounded,
so order does not matter) or run in one fixed order; numpy does only elementwise operations, comparisons and
accumulations, each of which IEEE 754 rounds in one way. So no BLAS, no vector width and no number of threads can
change a table.
"""
