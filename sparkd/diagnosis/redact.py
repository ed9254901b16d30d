"""A report that may be shown to strangers: no secrets, and nothing that users of the model said. Pure.

What hides too much costs a question; what hides too little cannot be taken back.
"""

import re
from typing import Any, Final

_HIDDEN: Final = "[hidden]"
_QUOTES: Final = r"['\"\\]*"
"""Around a name or a value; JSON within JSON has its quotes escaped."""
_NAMES_A_PLACE: Final = r"[\w-]{0,40}(?:file|path|dir|folder)s?\b"
_STRONG: Final = (
    r"(?:(?:api|access|private|auth|signing)[-_]?key|secret|passw(?:or)?d|passphrase|credential)"
    rf"(?!{_NAMES_A_PLACE})[\w-]{{0,40}}"
)
"""In a name, whatever is before and after it: `AWS_SECRET_ACCESS_KEY`, `X-Api-Key`, `DB_PASSWORD_2`."""
_WITH_NUMBERS: Final = r"tokens?_?\d*\b"
"""Engines speak of other tokens too: `stop_token_ids`, `tokenizer`, `max_tokens=64`."""
_NAME: Final = rf"(?:{_STRONG}|{_WITH_NUMBERS})"
_NAME_IS: Final = rf"(?:{_STRONG}|{_WITH_NUMBERS}(?!=\d{{1,9}}\b))="
"""As an assignment; of tokens there are numbers too."""
_IS: Final = rf"{_QUOTES}\s*[=:]\s*b?"
_PAIR: Final = r"\\*['\"]\s*,\s*b?(?=\\*['\"])"
"""Between a name and its value in a list of both, as headers are."""
_FLAG: Final = rf"(?<![\w-])--?[\w-]*(?:{_STRONG}|token\b)"

_BARE: Final = r"(?:\\ |[^\s'\",}\])])+"
"""A shell's blank may be in it, behind a backslash."""
_QUOTED: Final = r"(?:(?P<q{0}>['\"])(?:\\.|(?!(?P=q{0}))[^\\])*|(?P<e{0}>\\+['\"])(?:(?!(?P=e{0})).)*)"
"""Up to its closing quote, or to the end."""
_REST: Final = r"(?:(?!(?P=q)).)+"
"""Up to the quote that the word began with."""
_WORD: Final = rf"(?:\\*['\"](?!-)[^'\"]*['\"]?|(?!-){_BARE})"
_LOGIN: Final = r"(?<![\w-])(?:-[uU]|--(?:(?:proxy|http|ftp)-)?user(?:name)?)"
"""`curl -u ann:secret`."""
_USER: Final = r"(?!\d+:\d+\b)[^\s:/'\"\\=,]{1,64}:(?!//|\[hidden)"
"""But of `docker run --user 1000:1000` both are numbers."""
_NOTHING: Final = r"(?!(?:None|null|true|false)\b|\[hidden\]|expected (?:at least )?one argument)"

_SECRETS: Final = (
    # All of a word in quotes that is a name and its value, or says who logs in: `-e 'HF_TOKEN=two words'`.
    re.compile(rf"(?i)(?P<keep>(?P<q>\\*['\"])[\w.=-]{{0,60}}?{_NAME_IS}){_NOTHING}{_REST}"),
    re.compile(rf"(?P<keep>(?P<q>\\*['\"]){_LOGIN}=?{_USER}){_REST}"),
    re.compile(rf"(?P<keep>{_LOGIN}(?:{_QUOTES}[\s,=]\s*|)(?P<q>\\*['\"]){_USER}){_REST}"),
    # A flag in a command line that was written as a list, and all its values; then in one of words; then
    # with its value in the same word.
    re.compile(
        rf"(?i)(?P<keep>{_FLAG}\\*(?P<q>['\"]?)\s*,\s*)(?!['\"\\]*-|{_QUOTES}\[hidden){_WORD}(?:\s*,\s*{_WORD})*"
    ),
    re.compile(rf"(?i)(?P<keep>{_FLAG}{_QUOTES}\s+)(?!-|{_QUOTES}\[hidden){_WORD}(?:(?:,|\s+){_WORD})*"),
    re.compile(rf"(?i)(?P<keep>{_FLAG}{_QUOTES}=){_NOTHING}(?:{_QUOTED.format(1)}|{_BARE})"),
    # What says who somebody is, to the end of its text: `Authorization: Digest a="b", c="d"`.
    re.compile(
        rf"(?i)(?P<keep>\b(?:authorization|(?:set-)?cookie)(?:{_IS}|{_PAIR}))(?:{_QUOTED.format(1)}|[^'\"\\].*)"
    ),
    re.compile(r"(?i)(?P<keep>\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}"),
    # A name that says it, and its value: of a variable, a header, JSON or Python's dict. Lists go as a whole.
    re.compile(rf"(?i)(?P<keep>{_NAME}{_IS})[\[(](?!\s*[\d\])]|\s*(?:None|hidden)\b)[^\])]*[\])]?"),
    re.compile(
        rf"(?i)(?P<keep>(?:{_NAME}{_IS}|(?:{_STRONG}|{_WITH_NUMBERS}(?!{_PAIR}{_QUOTES}\d)){_PAIR})){_NOTHING}{_QUOTED.format(1)}"
    ),
    re.compile(rf"(?i)(?P<keep>{_STRONG}{_IS}){_NOTHING}(?![\[{{(]){_BARE}"),
    re.compile(rf"(?i)(?P<keep>{_WITH_NUMBERS}{_IS}){_NOTHING}(?![\[{{(]|\d{{1,9}}\b){_BARE}"),
    # Who logs in, and with what.
    re.compile(rf"(?P<keep>{_LOGIN}(?:\s+|=|){_USER})(?:{_QUOTED.format(1)}|{_BARE})"),
    # Of a URL: who calls, and what signs it. Behind a host there is a colon too, before its port.
    re.compile(r"(?P<keep>://[^\s/:\['\"]*:)(?!\d{1,5}/|\[hidden)(?:[^\s/'\"]+|[^\s'\"@]{1,200})(?=@)"),
    re.compile(r"(?i)(?P<keep>\bhttps?://)[^\s/:@'\"]+(?=@)"),
    re.compile(r"(?i)(?P<keep>[?&][\w.-]{0,40}(?:sig|signature|key|secret|auth|token|code)=)[^&\s'\"\\]+"),
    # Values that say by themselves what they are: of the Hub, of OpenAI and its like, of forges, of clouds.
    re.compile(
        r"(?P<keep>)\b(?:hf_[A-Za-z0-9]{12,}|(?:sk-|gh[opsur]_|github_pat_|glpat-|nvapi-|npm_|dckr_pat_|xox[abprs]-|AIza)[\w-]{8,}|"
        r"A[KS]IA[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)"
    ),
    # A key in PEM, line by line.
    re.compile(r"(?P<keep>^\W{0,4})[A-Za-z0-9+/=]{60,}(?=\W{0,4}$)"),
)
_KEY_IN_PEM: Final = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(-----END|\Z)", re.DOTALL)
_PROMPTS: Final = re.compile(
    rf"(?i)(received request\b[^:]*:|\b(?:prompts?|messages|prompt_token_ids){_QUOTES}\s*[=:]\s*|"
    rf"\bcontent{_QUOTES}\s*:|generated (?:text|response)\b[^:]*:|\boutputs?{_QUOTES}\s*[=:]\s*['\"\\]).*",
    re.DOTALL,
)
_SAID: Final = frozenset({"messages", "prompt", "prompts", "content"})
_STRONG_KEY: Final = re.compile(rf"(?i){_STRONG}|^(?:authorization|(?:set-)?cookie)$")
_TOKEN_KEY: Final = re.compile(r"(?i)token(?!i[sz])")
_BARE_NAME: Final = re.compile(r"[\w.-]{1,64}")
_OWN_WORDS: Final = (
    re.compile(rf"(?i)([\w.=-]{{0,60}}?{_NAME_IS}){_NOTHING}.+"),
    re.compile(rf"({_LOGIN}=?{_USER}).+"),
)
"""Words of a command line that have their secret in them, blanks and all."""
_LOGIN_FLAG: Final = re.compile(_LOGIN)
_LOGIN_VALUE: Final = re.compile(rf"({_USER}).+")
_WHOLE_FLAG: Final = re.compile(rf"(?i){_FLAG}")


def redacted(value: Any) -> Any:
    """The same JSON with every text redacted, and with the values of keys that name a secret or a prompt."""
    if isinstance(value, str):
        return redacted_text(value)
    if isinstance(value, list):
        return _list(value)
    if isinstance(value, dict):
        named = str(value.get("name", value.get("key", "")))
        hides = "value" in value and _names_a_secret(
            named, value["value"]
        )  # {"name": "HF_TOKEN", "value": …}
        return {
            key: _HIDDEN if hides and key == "value" else _of_key(str(key), one) for key, one in value.items()
        }
    return value


def _list(words: list[Any]) -> list[Any]:
    """A command line has a word each, a flag's values up to the next flag; a pair a name and its value."""
    is_pair = len(words) == 2 and isinstance(words[0], str) and _BARE_NAME.fullmatch(words[0]) is not None
    if is_pair and _names_a_secret(words[0], words[1]):
        return [words[0], _HIDDEN]
    found: list[Any] = []
    follows = False
    for before, word in zip(("", *words), words, strict=False):
        if isinstance(word, str) and (told := _own_word(str(before), word)) is not None:
            found.append(told)
            continue
        if not isinstance(word, str) or word.startswith("-"):
            follows = isinstance(word, str) and _WHOLE_FLAG.fullmatch(word) is not None
        found.append(_HIDDEN if follows and not str(word).startswith("-") else redacted(word))
    return found


def _own_word(before: str, word: str) -> str | None:
    """A word with a secret of its own; None for any other."""
    shapes = [*_OWN_WORDS, _LOGIN_VALUE] if _LOGIN_FLAG.fullmatch(before) else _OWN_WORDS
    match = next((match for shape in shapes if (match := shape.fullmatch(word))), None)
    return None if match is None else match[1] + _HIDDEN


def _of_key(key: str, value: Any) -> Any:
    if key in _SAID and value:
        return _HIDDEN
    return _HIDDEN if _names_a_secret(key, value) else redacted(value)


def _names_a_secret(key: str, value: Any) -> bool:
    """Of tokens there are also numbers, and numbers of them."""
    if not value or isinstance(value, bool):
        return False
    if _STRONG_KEY.search(key):
        return key != "key_file"
    is_text = isinstance(value, str) or (isinstance(value, list) and any(isinstance(v, str) for v in value))
    return is_text and _TOKEN_KEY.search(key) is not None and not key.endswith(("_file", "_path"))


def redacted_text(text: str) -> str:
    """One line, or several: each by itself, but for a key that goes over several."""
    text = _KEY_IN_PEM.sub(lambda match: f"{match[1]}{_HIDDEN}{match[2]}", text)
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    # What was said runs to the end of its line; a secret before it is hidden as well.
    line = _PROMPTS.sub(lambda match: f"{match[1].rstrip()} {_HIDDEN}", line)
    for secret in _SECRETS:
        line = secret.sub(_hide, line)
    return line


def _hide(match: "re.Match[str]") -> str:
    """With the quotes around it, if the quotes were part of what was found."""
    rest = match[0][len(match["keep"]) :]
    opening = re.match(r"\\*['\"]", rest)
    if opening is None:
        return match["keep"] + _HIDDEN
    closes = rest.endswith(opening[0]) and len(rest) > len(opening[0])
    return match["keep"] + opening[0] + _HIDDEN + (opening[0] if closes else "")
