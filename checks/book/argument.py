"""Drawings of the arguments: the flowcharts of the chapters as SVG pictures."""

import re
from collections.abc import Iterator, Mapping
from html import escape
from textwrap import wrap

import networkx as nx
from attrs import frozen

_FLOWCHART = re.compile(r"```mermaid\nflowchart TD\n(.*?)```\n", re.DOTALL)
_NODE = re.compile(r"(\w+)(?:\[\"(.*?)\"\])?")
_CHARACTERS = 22  # in a line of a box
_WIDTH, _LINE, _MARGIN, _GAP = 172, 17, 10, 44  # of boxes, in pixels


def drawn_arguments(chapter: str) -> str:
    """The chapter with each flowchart as a picture."""
    return _FLOWCHART.sub(lambda match: _picture(*_read(match[1])), chapter)


def _read(flowchart: str) -> tuple["nx.DiGraph[str]", dict[str, str]]:
    """The graph of a flowchart, and the text of each box."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    texts: dict[str, str] = {}
    for line in flowchart.split("\n"):
        boxes = [_NODE.match(part.strip()) for part in line.split("-->")]
        names = [box[1] for box in boxes if box]
        texts |= {box[1]: box[2] for box in boxes if box and box[2]}
        nx.add_path(graph, names)
    return graph, {name: texts.get(name, name) for name in graph}


@frozen
class _Box:
    """A box with its text; `x` and `y` are the middle of its upper edge."""

    x: float
    y: float
    lines: tuple[str, ...]

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _MARGIN


def _picture(graph: "nx.DiGraph[str]", texts: Mapping[str, str]) -> str:
    boxes = _placed(graph, texts)
    width = max(box.x for box in boxes.values()) + _WIDTH / 2 + _MARGIN
    height = max(box.y + box.height for box in boxes.values()) + _MARGIN
    arrows = [_arrow(boxes[upper], boxes[other]) for upper, other in graph.edges]
    drawn = [_drawn(box) for box in boxes.values()]
    says = "; ".join(f"{texts[other]}, from {texts[upper]}" for upper, other in graph.edges)
    return "\n".join(
        [
            f'<figure class="argument" tabindex="0"><svg viewBox="0 0 {width:.0f} {height:.0f}"'
            f' role="img" aria-label="{escape(says)}">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            ' markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            *arrows,
            *drawn,
            "</svg></figure>\n",
        ]
    )


def _placed(graph: "nx.DiGraph[str]", texts: Mapping[str, str]) -> dict[str, _Box]:
    """Boxes in layers, each below its predecessors and near their middle."""
    layers = [sorted(layer) for layer in nx.topological_generations(graph)]
    widest = max(map(len, layers))
    boxes: dict[str, _Box] = {}
    y = float(_MARGIN)
    for layer in layers:
        wanted = {name: _middle(graph, boxes, name) for name in layer}
        ordered = sorted(layer, key=lambda name: (wanted[name], name))
        step = (_WIDTH + _MARGIN) * widest / len(ordered)
        for place, name in enumerate(ordered):
            x = _MARGIN + step * (place + 0.5)
            boxes[name] = _Box(x, y, tuple(wrap(texts[name], _CHARACTERS)))
        y += max(boxes[name].height for name in layer) + _GAP
    return boxes


def _middle(graph: "nx.DiGraph[str]", boxes: Mapping[str, _Box], name: str) -> float:
    places = [boxes[parent].x for parent in graph.predecessors(name)]
    return sum(places) / len(places) if places else 0.0


def _arrow(upper: _Box, other: _Box) -> str:
    begin, end = upper.y + upper.height, other.y
    bend = (end - begin) / 2
    curve = f"M{upper.x:.0f} {begin:.0f}C{upper.x:.0f} {begin + bend:.0f}"
    curve += f" {other.x:.0f} {end - bend:.0f} {other.x:.0f} {end - 2:.0f}"
    return f'<path class="arrow" d="{curve}" marker-end="url(#head)"/>'


def _drawn(box: _Box) -> str:
    corner = f'x="{box.x - _WIDTH / 2:.0f}" y="{box.y:.0f}"'
    frame = f'<rect {corner} width="{_WIDTH}" height="{box.height:.0f}" rx="4"/>'
    return f"<g>{frame}{''.join(_texts(box))}</g>"


def _texts(box: _Box) -> Iterator[str]:
    for number, line in enumerate(box.lines):
        y = box.y + _MARGIN + (number + 0.75) * _LINE
        yield f'<text x="{box.x:.0f}" y="{y:.0f}">{escape(line)}</text>'
