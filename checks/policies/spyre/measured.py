"""Measured claims of the text on Spyre: interleaving."""

from collections.abc import Callable

from checks.harness.runs.measuring import Measured, asking, falls, serve, shown


def interleaving() -> Measured:
    """Four chats of 100 tokens decode while a prompt of 4,096 is computed in chunks of 512."""
    requests = [asking(f"chat {place}", 100, 60) for place in range(4)]
    requests.append(asking("long", 4_096, 10, 60))
    runs = [serve("spyre", requests, interleave=switch) for switch in (False, True)]
    rows = [
        (name, *map(shown, (itl.max, itl.mean, run.summary.ttft_units.max)))
        for name, run in zip(("off", "on"), runs, strict=True)
        for itl in [run.summary.itl_units]
    ]
    return Measured(
        name="Interleaving",
        columns=("interleaving", "ITL max", "ITL mean", "TTFT max"),
        rows=rows,
        claims={
            "Interleaving keeps decodes from stalling while a long prompt is computed.": falls(
                [run.summary.itl_units.max for run in runs]
            ),
            "The long prompt pays for it with a later first token.": falls(
                [run.summary.ttft_units.max for run in runs[::-1]]
            ),
        },
    )


MEASURED: tuple[Callable[[], Measured], ...] = (interleaving,)
