"""HTML of documents and live situations: page elements and self-contained pages."""

from base64 import urlsafe_b64encode
from html import escape
from typing import Any
from zlib import MAX_WBITS, compressobj

from checks.export.files import as_line
from checks.export.pages.assets import script
from checks.export.pages.situation import Json
from checks.export.printable import printable

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0 auto; padding: 1rem; max-width: 76rem; background: light-dark(#fff, #1b2128); }}
</style>
</head>
<body>
<main>
{element}
</main>
<script>
{script}</script>
</body>
</html>
"""


def steps_element(document: Json, **attributes: str | bool) -> str:
    """The element `lockstep-steps` with the document inside it.

    `attributes`: listed in `checks.export.pages`; True: no value, False: no attribute.
    """
    return _element("lockstep-steps", document, attributes)


def live_element(situation: Json, *, runtime: str, **attributes: str | bool) -> str:
    """The element `lockstep-live` with the live situation inside it."""
    return _element("lockstep-live", situation, {"runtime": runtime, **attributes})


def live_fragment(situation: Json, name: str = "live") -> str:
    """The fragment of a page's address at which its live example shows the situation."""
    deflate = compressobj(9, wbits=-MAX_WBITS)
    deflated = deflate.compress(as_line(situation).encode()) + deflate.flush()
    return f"{name}={urlsafe_b64encode(deflated).decode().rstrip('=')}"


def page(document: Json) -> str:
    """A self-contained page that needs no network and no server.

    Its first frame is the violation or the divergence, if there is one.
    """
    wrong = document["violation"] or document["divergence"] or {"frame": 0}
    element = steps_element(document, keys="page", heading=True, at=str(wrong["frame"]))
    title = escape(printable(document["title"]))
    return _PAGE.format(title=title, element=element, script=_inline(script()))


def _element(name: str, data: Json, attributes: dict[str, Any]) -> str:
    written = "".join(
        f" {key.replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not False
    )
    inline = f'<script type="application/json">{_inline(as_line(data))}</script>'
    return f"<{name}{written}>{inline}</{name}>"


def _inline(text: str) -> str:
    """Text for a script element, escaped so that it cannot end the element."""
    return text.replace("</", "\\u003c/").replace("<!--", "\\u003c!--")
