from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="MOD_MISSING",
    title="a required mod is not applied",
    cause="the mod does not know this version of vLLM, or a process never loaded it",
    remedy="`sparkd mods check --python PATH` on that node says more; `unknown: try` in the profile dares it",
    match=log("ModRefusedError: "),
    kind="end",
    retry="never",
)
