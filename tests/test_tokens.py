"""Tokens: results of `new_token` are accepted, invented or mistyped ones are rejected; and token files."""

from __future__ import annotations

import os
import string
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite.tokens import LENGTH, PREFIX, check_token, read_tokens

if TYPE_CHECKING:
    from pathlib import Path


def test_every_new_token_is_unique_and_accepted() -> None:
    tokens = {hoplite.new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert check_token("token", token) == token
        assert len(token) == LENGTH
        assert set(token) <= {*string.ascii_letters, *string.digits, "-", "_"}


def test_every_typo_is_found() -> None:
    """One character changed, dropped or doubled, two swapped, or a character of the other base64 alphabet."""
    token = hoplite.new_token()
    wrong = [f"{token[:place]}{'A' if token[place] != 'A' else 'B'}{token[place + 1 :]}" for place in range(LENGTH)]
    wrong += [token[:place] + token[place + 1 :] for place in range(LENGTH)]
    wrong += [token[: place + 1] + token[place:] for place in range(LENGTH)]
    wrong += [f"{token[:place]}{token[place + 1]}{token[place]}{token[place + 2 :]}" for place in range(LENGTH - 1)]
    # Read as plain base64 instead of base64url, one of these has the same bytes.
    wrong += [token.replace("-", "+"), token.replace("_", "/", 2), token[:-1] + "=", token[:-1] + "é", token + "\n"]
    for text in set(wrong) - {token}:
        with pytest.raises(hoplite.InvalidArgument, match="hoplite token new") as caught:
            check_token("token", text)
        assert text not in str(caught.value)


@pytest.mark.parametrize(
    ("made_up", "problem"),
    [
        ("secret", "was not created by hoplite"),
        ("x" * LENGTH, "was not created by hoplite"),
        (PREFIX + "secret", f"has 11 characters instead of {LENGTH}"),
        (PREFIX + "x" * (LENGTH - len(PREFIX)), "has a typo"),
        ("", "is empty"),
    ],
)
def test_an_invented_token_is_rejected(made_up: str, problem: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=f"^the token {problem}") as caught:
        check_token("the token", made_up)
    assert not made_up or made_up not in str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that only this user can read."""
    file = tmp_path / "hoplite.token"
    file.touch(mode=0o600)
    return file


def test_a_file_has_one_token_or_two(file: Path) -> None:
    tokens = [hoplite.new_token() for _ in range(3)]
    for text, expected in {
        tokens[0]: tokens[:1],
        f"{tokens[0]}\n": tokens[:1],
        f"\n  {tokens[1]}\r\n\n{tokens[0]}\n": [tokens[1], tokens[0]],
    }.items():
        file.write_text(text)
        assert read_tokens(file) == expected
    for text, problem in {
        "": "must have 1 or 2 tokens, but has 0",
        "\n".join(tokens): "must have 1 or 2 tokens, but has 3",
        f"{tokens[0]}\nchoose-your-own": "line 2 was not created by hoplite",
        f"{tokens[0][:-1]}\n": f"line 1 has {LENGTH - 1} characters",
        "\udcff\udcfe": "line 1 was not created by hoplite",
    }.items():
        file.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(hoplite.InvalidArgument, match=rf"^{file},? {problem}.*hoplite token new") as caught:
            read_tokens(file)
        assert tokens[0][:-1] not in str(caught.value)


def test_a_file_that_others_can_read_or_write_is_rejected(file: Path) -> None:
    file.write_text(hoplite.new_token())
    for mode in (0o604, 0o602, 0o620, 0o666):
        file.chmod(mode)
        with pytest.raises(hoplite.InvalidArgument, match=f"other users can read or write it: run chmod 600 {file}"):
            read_tokens(file)
    for mode in (0o600, 0o400):
        file.chmod(mode)
        assert len(read_tokens(file)) == 1


def test_a_group_may_read_only_a_file_of_root(file: Path) -> None:
    """For a service that runs as its own user: the administrator has chosen the group."""
    if os.getuid() != 0:
        pytest.skip("only root can make a file of root")
    file.write_text(hoplite.new_token())
    file.chmod(0o640)
    assert len(read_tokens(file)) == 1
    os.chown(file, 65534, 0)
    with pytest.raises(hoplite.InvalidArgument, match=r"belongs to another user \(65534\)"):
        read_tokens(file)


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    for path, problem in {tmp_path / "none": "No such file", tmp_path: "Is a directory"}.items():
        with pytest.raises(hoplite.InvalidArgument, match=f"can't read the tokens in {path}: {problem}"):
            read_tokens(path)
    with pytest.raises(hoplite.InvalidArgument, match="token_file is empty"):
        read_tokens("")
