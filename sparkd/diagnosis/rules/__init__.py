"""One folder an area, one file a rule: `AREA/ID.py` with `RULE = Rule(…)`. docs/adding-a-rule.md."""
