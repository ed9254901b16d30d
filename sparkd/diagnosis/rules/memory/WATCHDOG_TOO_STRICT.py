from sparkd.diagnosis.rule import Rule, log

RULE = Rule(
    id="WATCHDOG_TOO_STRICT",
    title="another program ended the rank at a fixed floor of memory",
    cause="a floor that knows neither the phase nor the slope ends loads that would have been well",
    remedy="let that program go, or lower its floor; sparkd's own floors are the profile's `memory.floors_gib`",
    match=log(
        "< floor", "below floor", pattern=r"MemAvailable\s*=?\s*\d+ ?[MG]iB (<|below)(?: the)? ?floor.*\bkill"
    ),
    kind="end",
    reference="MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#3",
)
