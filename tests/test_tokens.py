"""Tokens: what `new_token` makes is taken, what a person made up or mistyped is not, and no error tells a token."""

from __future__ import annotations

import string

import pytest

import hoplite
from hoplite.tokens import LENGTH, PREFIX, check_token


def test_each_token_is_new_and_is_taken() -> None:
    tokens = {hoplite.new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert check_token("token", token) == token
        assert len(token) == LENGTH
        assert set(token) <= {*string.ascii_letters, *string.digits, "-", "_"}


def test_every_typo_is_found() -> None:
    """One character changed, dropped or doubled, two exchanged, or a letter of the other base64."""
    token = hoplite.new_token()
    wrong = [f"{token[:place]}{'A' if token[place] != 'A' else 'B'}{token[place + 1 :]}" for place in range(LENGTH)]
    wrong += [token[:place] + token[place + 1 :] for place in range(LENGTH)]
    wrong += [token[: place + 1] + token[place:] for place in range(LENGTH)]
    wrong += [f"{token[:place]}{token[place + 1]}{token[place]}{token[place + 2 :]}" for place in range(LENGTH - 1)]
    # Written as base64 that is no base64url, one of these reads as the same bytes.
    wrong += [token.replace("-", "+"), token.replace("_", "/", 2), token[:-1] + "=", token[:-1] + "é", token + "\n"]
    for text in set(wrong) - {token}:
        with pytest.raises(hoplite.InvalidArgument, match="hoplite token new") as caught:
            check_token("token", text)
        assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("made_up", "said"),
    [
        ("secret", "was not made by hoplite"),
        ("x" * LENGTH, "was not made by hoplite"),
        (PREFIX + "secret", f"has 11 characters, a token has {LENGTH}"),
        (PREFIX + "x" * (LENGTH - len(PREFIX)), "has a typo"),
        ("", "is empty"),
    ],
)
def test_what_a_person_made_up_is_refused(made_up: str, said: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=f"^the token {said}") as caught:
        check_token("the token", made_up)
    assert not made_up or made_up not in str(caught.value)
