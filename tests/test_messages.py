"""Messages contain no Rust debug text, such as an `Option`, a list of bytes or the fields of a struct.

In the sources of the Rust crates `{...?}` formats a value as debug text. It is allowed in asserts and implementations
of `Debug`. User-supplied text is quoted by `Quoted`, which accepts only text.
"""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

CRATES = Path(__file__).parent.parent / "crates"

TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
COMMENT = re.compile(r"//[^\n]*")
DEBUG_TEXT = re.compile(r"\{[^{}]*\?\}")
# Texts about broken invariants, and implementations of Debug.
EXEMPT = re.compile(r"\b(?:debug_)?assert(?:_eq|_ne)?!|\bpanic!|\bunreachable!|\bimpl[^{;]*\bDebug for\b[^{]*")


def debug_texts(source: str) -> Iterator[str]:
    """Yields the string literals with debug text, except in tests, asserts and implementations of Debug."""
    source = source.partition("#[cfg(test)]\nmod tests {")[0]
    texts: list[str] = []

    def keep(match: re.Match[str]) -> str:
        texts.append(match[0])
        return f'"{len(texts) - 1}"'

    # Without their string literals, sources have balanced brackets.
    bare = COMMENT.sub("", TEXT.sub(keep, re.sub(r"'(?:[^'\\\n]|\\.)'", "' '", source)))
    exempt = [range(match.start(), end_of(bare, match.end())) for match in EXEMPT.finditer(bare)]
    for match in re.finditer(r'"(\d+)"', bare):
        text = texts[int(match[1])]
        if DEBUG_TEXT.search(text) and not any(match.start() in span for span in exempt):
            yield text


def end_of(bare: str, start: int) -> int:
    """Returns the end of the brackets that open at or soon after `start`."""
    depth = 0
    for place in range(start, len(bare)):
        if bare[place] in "([{":
            depth += 1
        elif bare[place] in ")]}":
            depth -= 1
            if depth == 0:
                return place
    return len(bare)


def test_no_message_contains_debug_text() -> None:
    sources = [
        path
        for crate in ("proto", "shm", "node", "py")
        for path in (CRATES / crate / "src").rglob("*.rs")
        if "tests" not in path.stem and "tests" not in path.parent.name
    ]
    assert len(sources) > 50
    found = {str(path.relative_to(CRATES)): texts for path in sources if (texts := [*debug_texts(path.read_text())])}
    assert found == {}


def test_the_check_finds_debug_text() -> None:
    source = """
    impl fmt::Debug for Name { fn fmt(&self) { write!(f, "{:?} of {{", self.0) } }
    fn f() {
        assert!(x == '"', "{x:?} (");
        let text = format!("{kind:?} \\" instead of {}", 1);  // "{no:?}"
        let text = format!("begins with {0:02x?}");
    }
    #[error("of {0:?}")]
    struct Error(Option<u8>);
    #[cfg(test)]
mod tests {
    fn g() { format!("{:?}", 1) }
}
""".replace("    #[cfg(test)]", "#[cfg(test)]")
    assert [text[1:10] for text in debug_texts(source)] == ["{kind:?} ", "begins wi", 'of {0:?}"'[:9]]


@pytest.mark.parametrize(
    ("sent", "quoted"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 40, '"HTTP"'), (bytes(range(1, 64)), "01020304")]
)
def test_joining_a_server_of_another_protocol_quotes_its_first_bytes(sent: bytes, quoted: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                with caller:
                    caller.sendall(sent)
                    caller.recv(1)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(hoplite.JoinError) as raised:
            Node(join=[f"127.0.0.1:{port}"])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert f"127.0.0.1:{port}: the peer does not use the Hoplite protocol: its stream begins with " in str(raised.value)
    assert quoted in str(raised.value)


def test_joining_a_silent_server_explains_the_possible_reasons() -> None:
    """For example, an HTTP server waits for the end of a line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(hoplite.JoinError, match=rf"127\.0\.0\.1:{port}: it accepted the connection") as raised:
            Node(join=[f"127.0.0.1:{port}"])
    assert "check that it is a Hoplite node and not paused" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_joining_an_unknown_host_names_it() -> None:
    with pytest.raises(hoplite.JoinError, match=r"join.*no-such-host\.invalid:7420: can't resolve") as raised:
        Node(join=["no-such-host.invalid:7420"])
    assert "listen" not in str(raised.value)
    # The token is not the reason.
    assert "secret" not in str(raised.value)


def test_an_unknown_host_to_listen_on_or_to_advertise_is_named() -> None:
    with pytest.raises(hoplite.InvalidArgument, match=r"can't listen on no-such-host\.invalid:0: can't resolve"):
        Node(listen="no-such-host.invalid:0", no_auth=True)
    with pytest.raises(hoplite.InvalidArgument, match=r"can't advertise no-such-host\.invalid:0: can't resolve"):
        Node(advertise="no-such-host.invalid:0")


def test_a_socket_in_a_missing_folder_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    with pytest.raises(hoplite.InvalidArgument, match=f"the directory {folder} .* does not exist: .*mkdir -p {folder}"):
        Node(socket=folder / "node.sock")
