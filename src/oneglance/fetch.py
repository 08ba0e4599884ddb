"""The bytes behind an http(s) URL, from a public address unless private ones are allowed.

Every address of every hop is checked, and the connection is made to what was checked. One time limit holds for the
whole answer of a hop, so that a server that drips cannot hold the caller.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from oneglance.errors import FetchError, ImageError, LargeImageError, PrivateUrlError

URL_TIMEOUT_S = 20.0
MAX_REDIRECTS = 5
URL_SAFE = "/%:@!$&'()*+,;=~-._?"


def too_long(label: str, max_bytes: int) -> ImageError:
    """What is raised for more bytes than are allowed."""
    return LargeImageError(f"{label} is larger than {max_bytes} bytes", "save it smaller or raise max_bytes")


def fetch(text: str, label: str, *, allow_private_urls: bool, max_bytes: int) -> bytes:
    """The body of a GET, after at most ``MAX_REDIRECTS`` redirects.

    Args:
        text: the URL.
        label: what messages call it.
        allow_private_urls: also connect to loopback, private and link-local addresses.
        max_bytes: longest body.

    Raises:
        ImageError: no body, or a longer one; the message is one line.
    """
    for _ in range(MAX_REDIRECTS + 1):
        try:
            url = urlsplit(text)
            addresses = _resolve(url, label, allow_private=allow_private_urls)
            data, redirect = _get(_PinnedConnection(url, addresses), url, label, max_bytes)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise FetchError(f"{label} could not be fetched ({reason})", "check the URL and the network") from None
        if redirect is None:
            return data
        text = urljoin(text, redirect)
    raise FetchError(f"{label} redirects more than {MAX_REDIRECTS} times; pass the final URL")


class _PinnedConnection(http.client.HTTPConnection):
    """A connection to addresses that were checked, so that a second DNS answer cannot lead elsewhere. Uses no proxy."""

    def __init__(self, url: SplitResult, addresses: list[str]) -> None:
        is_tls = url.scheme.lower() == "https"
        super().__init__(url.hostname or "", url.port or (443 if is_tls else 80), timeout=URL_TIMEOUT_S)
        self._addresses = addresses
        self._opened: socket.socket | None = None
        self._context = ssl.create_default_context() if is_tls else None
        self.default_port = 443 if is_tls else 80

    def connect(self) -> None:
        *others, last = self._addresses
        for address in others:
            with contextlib.suppress(OSError):  # perhaps no IPv6 here; the next address may do
                sock = socket.create_connection((address, self.port), self.timeout)
                break
        else:
            sock = socket.create_connection((last, self.port), self.timeout)
        if self._context:
            sock = self._context.wrap_socket(sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = self._opened = sock  # http.client lets go of its own while an answer is read
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()

    def abort(self) -> None:
        """Wake whoever waits on this connection."""
        if self._opened is not None:
            with contextlib.suppress(OSError, ValueError):  # closed already
                self._opened.shutdown(socket.SHUT_RDWR)


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return inner.is_global and not inner.is_multicast
    return ip.is_global and not ip.is_multicast


def _resolve(url: SplitResult, label: str, *, allow_private: bool) -> list[str]:
    """The addresses to connect to. Every one must be allowed, not only the first."""
    if url.scheme.lower() not in ("http", "https") or not url.hostname:
        raise FetchError(f"{label} leads to {url.geturl()[:80]!r}; only http and https URLs with a host are fetched")
    infos = socket.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in infos]
    if not allow_private and not all(_is_public(address) for address in addresses):
        raise PrivateUrlError(
            f"{label} leads to the private address of {url.hostname!r}",
            "download it and pass the path, or in Python load_image(…, allow_private_urls=True)",
        )
    return addresses


def _get(connection: _PinnedConnection, url: SplitResult, label: str, max_bytes: int) -> tuple[bytes, str | None]:
    """The body, or where a redirect leads."""
    query = f"?{quote(url.query, safe=URL_SAFE)}" if url.query else ""
    target = (quote(url.path, safe=URL_SAFE) or "/") + query
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        connection.abort()

    timer = threading.Timer(URL_TIMEOUT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "oneglance"})
        with connection.getresponse() as response:
            if response.status in (301, 302, 303, 307, 308):
                return b"", response.getheader("Location") or ""
            if response.status != 200:
                raise FetchError(f"{label} could not be fetched (HTTP {response.status}); check the URL")
            if (response.length or 0) > max_bytes:
                raise too_long(label, max_bytes)
            data = response.read(max_bytes + 1)
            if response.length and len(data) <= max_bytes:
                raise ConnectionError("the server closed the connection early")
    except (OSError, ValueError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
        connection.close()
    if is_late.is_set():
        raise FetchError(f"{label} took longer than {URL_TIMEOUT_S:g} s", "download it and pass the path")
    return data, None
