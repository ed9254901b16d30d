"""Why something fell, or would: one catalogue of rules for preflight, the watch and a fall's remains.

`catalogue.py` finds the rules, `rule.py` says what one is, `evidence.py` what it may look at, `choice.py`
which of several findings is the cause. All of it is pure.
"""
