"""A report that may be shown to strangers: no secrets, and nothing that users of the model said. Pure."""

import re
from typing import Any, Final

_HIDDEN: Final = "[hidden]"
_QUOTES: Final = r"['\"\\]*"
"""Around a name or a value; JSON within JSON has its quotes escaped."""
_NAME: Final = r"(?:api[-_]?key|token|secret|passw(?:or)?d|credential)s?\b"
_IS: Final = rf"{_QUOTES}\s*[=:]\s*"
_FLAG: Final = r"(?<![\w-])--[\w-]*(?:api[-_]?key|token|secret|password)"
_VALUE: Final = r"[^\s'\",}\])]+"
_SECRETS: Final = (
    # A name that says it, and its value: of a variable, a header, JSON or Python's dict; then of a flag.
    # Lists of texts go as a whole.
    re.compile(rf"(?i)({_NAME}{_IS})([\[(](?=\s*['\"\\])[^\])]*[\])]?)"),
    re.compile(rf"(?i)({_NAME}{_IS}{_QUOTES})(?!None\b|null\b|true\b|false\b|\d{{1,9}}\b|[\[{{(])({_VALUE})"),
    re.compile(rf"(?i)({_FLAG}(?:{_QUOTES}[= ]+|['\"\\]+\s*,\s*){_QUOTES})(?!-|\[hidden\])({_VALUE})"),
    re.compile(rf"(?i)(authorization{_IS}{_QUOTES}(?:bearer|basic)?\s*|\bbearer\s+)([^\s'\",}}]+)"),
    # Values that say by themselves what they are: of the Hub, of OpenAI and its like, of GitHub; a URL's own.
    re.compile(r"()(\b(?:hf_|sk-|ghp_|gho_|github_pat_|nvapi-|xox[abp]-)[\w-]{8,})"),
    re.compile(r"(://[^\s/:@]+:)([^\s/@]+)(?=@)"),
)
_PROMPTS: Final = re.compile(
    rf"(?i)(received request\b[^:]*:|\b(?:prompts?|messages|prompt_token_ids){_IS}|\bcontent{_QUOTES}\s*:|"
    rf"generated (?:text|response)\b[^:]*:|\boutputs?{_IS}['\"\\]).*",
    re.DOTALL,
)
_SAID: Final = frozenset({"messages", "prompt", "prompts", "content"})
_NAMES: Final = re.compile(r"(?i)(api_?key|token|secret|passw|credential)")


def redacted(value: Any) -> Any:
    """The same JSON with every text redacted, and with the values of keys that name a secret or a prompt."""
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, list):
        return [
            _HIDDEN if _follows_a_flag(value, place) else redacted(one) for place, one in enumerate(value)
        ]
    if isinstance(value, dict):
        return {key: _of_key(str(key), one) for key, one in value.items()}
    return value


def _follows_a_flag(words: list[Any], place: int) -> bool:
    """Of a command line, one word each."""
    before = words[place - 1] if place else None
    return isinstance(before, str) and re.fullmatch(f"(?i){_FLAG}", before) is not None


def _of_key(key: str, value: Any) -> Any:
    if key in _SAID and value:
        return _HIDDEN
    is_text = isinstance(value, str) or (isinstance(value, list) and any(isinstance(v, str) for v in value))
    if is_text and value and _NAMES.search(key) and key != "key_file":
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
