"""`lockstep book`: the chapters, rules, proofs and runs as a site to read."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from checks.book.building import build
from checks.cli.common import directory_option, err, out
from checks.cli.outputs import Command

_ADDRESS = "127.0.0.1"


@click.command(cls=Command)
@directory_option("--out", "out_path", default="book", what="the site")
@click.option("--serve", is_flag=True, help="Show it at an address of this machine, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
def book(out_path: Path, serve: bool, port: int) -> int:
    """Write the book as a site: chapters, rules, proofs and runs to look at.

    Open its index.html, with or without a server. Chapters, a page for each rule, instance, proof
    and release, and pictures of runs, generated from the records and the reference. It loads
    nothing from anywhere else. Needs the extra `book`.
    """
    built = build(out_path, lambda doing: err.print(f"book: {doing}"))
    out.print(f"{built.pages:,} pages, {built.size / 1e6:.1f} MB: {out_path / 'index.html'}")
    if serve:
        _serve(out_path, port)
    return 0


def _serve(directory: Path, port: int) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer((_ADDRESS, port), handler) as server:
        out.print(f"serving http://{_ADDRESS}:{server.server_port}/ until Ctrl-C")
        server.serve_forever()
