"""Safe admissions that a rule rejects: python benchmarks/rejections.py [--cases N].

It draws decode batches and candidates and compares the rules `documented` and `shipped` with
`exact`. A case that `exact` admits and the other rule rejects is rejected although it is safe; a
case that `exact` rejects and the other rule admits exceeds the limit in the worst case.

The population: prompts are lognormal around 1,000 tokens, maximum outputs around 300, both cut to
the model length. The batch is filled request by request as far as `exact` admits, up to a batch
size drawn from 1 to the slots; each member has generated a uniform share of its output. `shipped`
gets the batch's own tkv. Cases whose worst case is above a share of the limit are counted
separately, because far from the limit every rule admits.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from random import Random

from attrs import frozen
from rich.console import Console
from rich.progress import track
from rich.table import Table

from spec.spyre.admission import (
    Member,
    documented_volume_holds,
    shipped_volume_holds,
    worst_case_volumes,
)
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import max_tkv

NEAR = 0.8  # of the limit


@frozen
class Case:
    """A decode batch, the candidate, and the largest volume of their worst case, in tokens."""

    batch: tuple[Member, ...]
    candidate: Member
    worst_case: int


def length(random: Random, around: int, most: int) -> int:
    """A length in tokens, lognormal."""
    return max(1, min(most, round(random.lognormvariate(0, 1) * around)))


def request(random: Random, config: SpyreConfig) -> Member:
    """A request that the model length allows, before its first token."""
    prompt = length(random, 1_000, config.max_model_len - 1)
    return Member(prompt, length(random, 300, config.max_model_len - prompt))


def decoding(random: Random, member: Member) -> Member:
    """The request after it has generated some of its output."""
    generated = random.randint(1, member.remaining)
    return Member(member.length + generated - 1, member.remaining - generated)


def worst_case(batch: list[Member], candidate: Member, config: SpyreConfig) -> int:
    """The largest volume of any step, if no other request joins."""
    return int(max(worst_case_volumes(batch, candidate, config.block_size)))


def case(random: Random, config: SpyreConfig) -> Case:
    """A batch that `exact` could have filled, and one more request."""
    batch: list[Member] = []
    for _ in range(random.randint(1, config.max_num_seqs - 1)):
        newcomer = request(random, config)
        if worst_case(batch, newcomer, config) <= config.max_batch_tkv_limit:
            started = decoding(random, newcomer)
            if started.remaining:
                batch.append(started)
    candidate = request(random, config)
    return Case(tuple(batch), candidate, worst_case(batch, candidate, config))


Rule = Callable[[Case, SpyreConfig], bool]


def documented(drawn: Case, config: SpyreConfig) -> bool:
    """The text's projection."""
    limit, size = config.max_batch_tkv_limit, config.block_size
    return bool(documented_volume_holds(drawn.batch, drawn.candidate, limit, size))


def shipped(drawn: Case, config: SpyreConfig) -> bool:
    """The projection of 2.6.3, from the batch's own tkv."""
    limit, size = config.max_batch_tkv_limit, config.block_size
    tkv = max_tkv([row.length for row in drawn.batch], size) if drawn.batch else 0
    return bool(shipped_volume_holds(drawn.batch, drawn.candidate, limit, size, tkv))


RULES: dict[str, Rule] = {"documented": documented, "shipped": shipped}


def counted(cases: int, seed: int, config: SpyreConfig) -> Counter[tuple[str, ...]]:
    """Counts of cases: by population and verdict of `exact`, and of rules that disagree with it."""
    random, counts = Random(seed), Counter[tuple[str, ...]]()
    for _ in track(range(cases), "cases", console=Console(stderr=True), transient=True):
        drawn = case(random, config)
        limit = config.max_batch_tkv_limit
        safe = "safe" if drawn.worst_case <= limit else "unsafe"
        populations = ["all", *(["near"] if drawn.worst_case > NEAR * limit else [])]
        for population in populations:
            counts[population, safe] += 1
            for name, rule in RULES.items():
                if rule(drawn, config) != (safe == "safe"):
                    counts[population, safe, name] += 1
    return counts


def main() -> None:
    """Draw, count, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit", type=int, default=SpyreConfig().max_batch_tkv_limit, help="tokens"
    )
    chosen = parser.parse_args()
    counts = counted(chosen.cases, chosen.seed, SpyreConfig(max_batch_tkv_limit=chosen.limit))
    table = Table("population", "rule", "safe cases", "rejected", "unsafe cases", "admitted")
    names = {"all": "all", "near": f"worst case above {NEAR:.0%} of the limit"}
    for population, name in names.items():
        safe, unsafe = counts[population, "safe"], counts[population, "unsafe"]
        for rule in RULES:
            rejected, admitted = (
                counts[population, verdict, rule] for verdict in ("safe", "unsafe")
            )
            share = f"{rejected} ({rejected / safe:.2%})" if safe else "-"
            table.add_row(name, rule, str(safe), share, str(unsafe), str(admitted))
    Console().print(table)


if __name__ == "__main__":
    main()
