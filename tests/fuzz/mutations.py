"""Damaged files: edits of the bytes of a valid one, and values of every kind."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Edit:
    """A change of bytes.

    Attributes:
        kind: flip, delete, insert, repeat, truncate or zero.
        position: where, as a fraction of the file.
        content: bytes to insert; their number is the length of a deletion.
    """

    kind: str
    position: float
    content: bytes

    def apply(self, data: bytes) -> bytes:
        """The file after the edit."""
        start = int(self.position * len(data))
        stop = start + max(1, len(self.content))
        before, middle, after = data[:start], data[start:stop], data[stop:]
        match self.kind:
            case "flip":
                middle = bytes(byte ^ (1 << start % 8) for byte in middle)
            case "delete":
                middle = b""
            case "insert":
                middle = self.content + middle
            case "repeat":
                middle += middle
            case "truncate":
                after = b""
            case "zero":
                middle = bytes(len(middle))
        return before + middle + after


EDITS = st.lists(
    st.builds(
        Edit,
        st.sampled_from(["flip", "delete", "insert", "repeat", "truncate", "zero"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(max_size=12),
    ),
    max_size=4,
)


def damage(data: bytes, edits: list[Edit]) -> bytes:
    """A file after several edits."""
    for edit in edits:
        data = edit.apply(data)
    return data


TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "nan", "inf", "-1", "1e999", "<script>", "=1+1", "../../x", "\x00", "\u202e", "true", "cora"]),
)
NUMBERS = st.one_of(
    st.integers(-3, 30),
    st.sampled_from([10**30, -(10**30), 2**31, 2**63, 2**64]),
    st.floats(allow_nan=True, allow_infinity=True),
)
VALUES = st.recursive(
    st.one_of(NUMBERS, TEXTS, st.booleans()),
    lambda children: st.one_of(
        st.lists(children, max_size=3), st.dictionaries(st.text(max_size=4), children, max_size=2)
    ),
    max_leaves=5,
)
