"""Kinds of folders of tables: what is measured by which command, in which tables, and what its readers need.

Whoever adds a kind adds an entry to ``KINDS``, and the columns of its tables to ``olmo_sparsity.tables.schemas``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What the folders of one kind hold.

    Attributes:
        name: in manifests; the tables of a run lie in the run's folder of this name.
        command: of ``olmo-sparsity``, which writes it.
        tables: the first is written last, so that its part files show that the other tables have theirs.
        needed: keys of the manifest that results are read with, besides those that every folder of tables has from its beginning.
        not_measured: what is said of a run that has none, with ``{run}``.
    """

    name: str
    command: str
    tables: tuple[str, ...]
    needed: tuple[str, ...]
    not_measured: str

    @property
    def own_files(self) -> tuple[str, ...]:
        """What commands write into such a folder, as patterns."""
        return ("sessions/*.json", "estimates.parquet", *(f"{table}/part-*.parquet" for table in self.tables))


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="influence",
            command="influence",
            tables=("windows", "selections"),
            needed=("run", "source", "split"),
            not_measured="nothing has been measured in this run; run `olmo-sparsity influence` first",
        ),
        Kind(
            name="synthetic",
            command="synth eval",
            tables=("answers",),
            needed=(),
            not_measured="no evaluation of this run is finished; run `olmo-sparsity synth eval TASK --run {run}`, which "
            "continues one that has begun",
        ),
    )
}


def is_kind(name: object) -> bool:
    """Return whether a value, such as one that a manifest holds, is the name of a kind."""
    return isinstance(name, str) and name in KINDS
