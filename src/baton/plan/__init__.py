"""`baton plan`: what lookahead, gating and cue switching can gain for a pair, before anything is run.

`costs.py` holds the pair's costs, `theory.py` the closed forms, `simulate.py` Monte Carlo and event simulations,
`advice.py` puts them beside each other and chooses depth, width and gate, `report.py` shows it.
"""
