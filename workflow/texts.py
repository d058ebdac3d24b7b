"""Text that comes from users, as it may stand in a line of a log, on a page or in a terminal.

It is shown character by character as it is, except for what would steer a terminal or deceive a reader (escape
sequences, NUL, bidirectional overrides, line breaks): that appears as an escape such as ``\\x1b``.
"""

from __future__ import annotations

import re
from typing import Final

# Controls, and format characters that reorder, hide or break what stands around them. The two joiners
# (U+200C, U+200D) stay: some scripts and many emoji need them, and they hide nothing.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(value: object) -> str:
    """`value` as text that any terminal can take: what isn't plainly visible is escaped."""
    return _UNPRINTABLE.sub(_escape, str(value))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def one_line(value: object, limit: int = 500) -> str:
    """`value` on one printable line of at most `limit` characters; runs of white space become one space."""
    # Far more than can be shown, cut before the work: an error may be megabytes long.
    text = printable(" ".join(str(value)[: limit * 20].split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."
