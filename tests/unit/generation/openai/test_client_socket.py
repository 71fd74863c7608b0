from __future__ import annotations

import socket
import ssl

import pytest

from generation.openai.client_socket import watch


def test_a_client_is_there_until_it_closes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        has_gone = watch({"gunicorn.socket": ours})
        assert not has_gone()
        theirs.close()
        assert has_gone()


def test_what_a_client_sends_ahead_stays_on_the_socket() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        has_gone = watch({"gunicorn.socket": ours})
        theirs.sendall(b"GET /")
        assert not has_gone()
        assert not has_gone()
        assert ours.recv(10) == b"GET /"


def test_a_socket_that_was_reset_or_closed_here_has_no_client() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        has_gone = watch({"gunicorn.socket": ours})
        ours.close()
        assert has_gone()


def test_a_blocking_socket_does_not_make_it_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(True)
        assert not watch({"gunicorn.socket": ours})()
        assert ours.getblocking()


@pytest.mark.parametrize("environ", [{}, {"gunicorn.socket": None}, {"gunicorn.socket": object()}])
def test_without_a_socket_nobody_is_seen_to_go(environ: dict[str, object]) -> None:
    assert not watch(environ)()


def test_a_client_that_closes_behind_unread_bytes_has_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        has_gone = watch({"gunicorn.socket": ours})
        theirs.sendall(b"GET /")
        theirs.close()
        assert has_gone()


def test_a_tls_client_is_seen_to_go_though_nothing_is_taken_off_its_socket() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        with context.wrap_socket(ours, do_handshake_on_connect=False) as tls:
            has_gone = watch({"gunicorn.socket": tls})
            theirs.sendall(b"a record of which only the kernel knows")
            assert not has_gone()
            theirs.close()
            assert has_gone()
