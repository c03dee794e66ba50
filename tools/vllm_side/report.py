"""What was compared, and where it differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import define, field

MOST_SHOWN = 5


@define
class Report:
    """Comparisons by what they are of; each is shown as soon as it differs."""

    compared: Counter[str] = field(factory=Counter)
    different: Counter[str] = field(factory=Counter)

    def add(self, kind: str, name: str, differences: Sequence[str]) -> None:
        """One comparison and the lines that say where its sides differ."""
        self.compared[kind] += 1
        if differences:
            self.different[kind] += 1
            more = f" and {len(differences) - MOST_SHOWN} more" if len(differences) > MOST_SHOWN else ""
            print(f"{kind}: {name}: {'; '.join(differences[:MOST_SHOWN])}{more}", flush=True)

    def told(self, text: str) -> None:
        """Something that helps to see why what follows differs."""
        print(text, flush=True)

    def summary(self) -> str:
        """One line for each kind."""
        width = max(map(len, self.compared), default=0)
        return "\n".join(
            f"{kind:{width}}  {count:5} compared  {self.different[kind]:5} different"
            for kind, count in self.compared.items()
        )
