"""A measurement with its numbers, as figures and pages show them; what takes long is computed when it is first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from olmo_sparsity.statistics.single.breakdowns import ClassSummary, DistanceShares, by_class, by_distance
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.spectrum import TOLERANCE, Spectra, spectra
from olmo_sparsity.statistics.single.summary import Summary, summarize


@dataclass(frozen=True, eq=False)
class Measured:
    """A measurement to show.

    Attributes:
        tables: its influence folder.
        measurement: its numbers, window by window.
        summary: its numbers over all windows.
    """

    tables: Path
    measurement: Measurement
    summary: Summary

    @classmethod
    def read(cls, tables: Path) -> Measured:
        """Read a finished influence folder."""
        measurement = load(tables)
        return cls(tables, measurement, summarize(measurement))

    @cached_property
    def classes(self) -> list[ClassSummary]:
        """Its numbers by class of the target."""
        return by_class(self.measurement, self.summary)

    @cached_property
    def spectra(self) -> Spectra:
        """How many long-range tokens its targets need."""
        return spectra(self.measurement)

    @cached_property
    def spectra_of_classes(self) -> dict[str, Spectra]:
        """The same by class of the target, at one tolerance."""
        classes_W = self.measurement.windows["target_class"].to_numpy()
        names = [entry.target_class for entry in self.classes]
        return {name: spectra(self.measurement.restrict(classes_W == name), tolerances=[TOLERANCE]) for name in names}

    @cached_property
    def distances(self) -> list[DistanceShares]:
        """Where the chosen tokens lie."""
        return by_distance(self.tables, self.measurement)
