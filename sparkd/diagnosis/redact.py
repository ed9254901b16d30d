"""A report that may be shown to strangers: no secrets, and nothing that users of the model said. Pure."""

import re
from typing import Any, Final

_HIDDEN: Final = "[hidden]"
_SECRETS: Final = (
    # A name that says it, and its value: of a variable, a header, JSON or Python's dict; then of a flag.
    re.compile(
        r"(?i)([\w-]*(?:api[-_]?key|token|secret|passw(?:or)?d|credential)s?\b['\"]?\s*[=:]\s*['\"]?)"
        r"(?!None\b|null\b|true\b|false\b|\d{1,9}\b|[\[{(])([^\s'\",}\])]+)"
    ),
    re.compile(r"(?i)(--[\w-]*(?:api-?key|token|secret|password)[= ]+['\"]?)(?!-)([^\s'\",}\])]+)"),
    re.compile(r"(?i)(authorization['\"]?\s*[=:]\s*['\"]?(?:bearer|basic)?\s*|\bbearer\s+)([^\s'\",}]+)"),
    # Values that say by themselves what they are: of the Hub, of OpenAI and its like, of GitHub; a URL's own.
    re.compile(r"()(\b(?:hf_|sk-|ghp_|gho_|github_pat_|nvapi-|xox[abp]-)[\w-]{8,})"),
    re.compile(r"(://[^\s/:@]+:)([^\s/@]+)(?=@)"),
)
_PROMPTS: Final = re.compile(
    r"(?i)(received request\b[^:]*:|\bprompts?['\"]?\s*[:=]|\bmessages['\"]?\s*[:=]|\bcontent['\"]?\s*:|"
    r"\bprompt_token_ids['\"]?\s*[:=]|generated (?:text|response)\b[^:]*:|\boutputs?['\"]?\s*[:=]\s*['\"]).*",
    re.DOTALL,
)
_SAID: Final = frozenset({"messages", "prompt", "prompts", "content"})
_NAMES: Final = re.compile(r"(?i)(api_?key|token|secret|passw|credential)")


def redacted(value: Any) -> Any:
    """The same JSON with every text redacted, and with the values of keys that name a secret or a prompt."""
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, list):
        return [redacted(one) for one in value]
    if isinstance(value, dict):
        return {key: _of_key(str(key), one) for key, one in value.items()}
    return value


def _of_key(key: str, value: Any) -> Any:
    if key in _SAID and value:
        return _HIDDEN
    if isinstance(value, str) and value and _NAMES.search(key) and key != "key_file":
        return _HIDDEN
    return redacted(value)


def redacted_text(text: str) -> str:
    """One line, or several: each by itself."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    # What was said runs to the end of its line; a secret before it is hidden as well.
    line = _PROMPTS.sub(lambda match: f"{match[1]} {_HIDDEN}", line)
    for secret in _SECRETS:
        line = secret.sub(lambda match: match[1] + _HIDDEN, line)
    return line
