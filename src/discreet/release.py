"""Release: all that leaves the mechanism."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from discreet.atomic import new_folder
from discreet.plan import Plan
from discreet.query import Numbers, Point

FORMAT = 2


class Blocks(NamedTuple):
    """Moments of the trace, one entry per block of steps and coordinate; shapes are (…, blocks, coordinates).

    Of the iterates: number of `steps` (one coordinate), mean, centred sum of squares, and Σ time × iterate with time
    counted from the middle of the block. Of the points (x_t, y_t): moments with weight 1 / scale_t². Sums of squares
    and products are centred at the block's own means, so that nothing cancels, however far the trace is from zero.
    """

    steps: Numbers
    mean: Numbers
    square: Numbers
    drift: Numbers
    weight: Numbers
    mean_x: Numbers
    mean_y: Numbers
    xx: Numbers
    xy: Numbers
    yy: Numbers


class Cross(NamedTuple):
    """Products of all coordinates of the points of each block, centred at the block's means: (…, blocks, d, d).

    `xx` is Σ(x − x̄)(x − x̄)ᵀ and `yx` is Σ(y − ȳ)(x − x̄)ᵀ, steps counted alike.
    """

    xx: Numbers
    yx: Numbers


def multiply(points: Point) -> Cross:
    """The products of one block of consecutive steps (leading axis of `points`)."""
    dx, dy = (part - part.mean(0)[None] for part in (points.x, points.y))
    return Cross(dx.T @ dx, dy.T @ dx)


def summarize(points: Point) -> Blocks:
    """The moments of one block of consecutive steps (leading axis of `points`).

    Sums over steps are written as matrix products: for a long φ they would otherwise cost more than the steps.
    """
    iterate, x, y, weight = points.iterate, points.x, points.y, points.scale**-2
    steps = len(iterate)
    each, time = np.ones(steps), np.arange(steps) - (steps - 1) / 2
    mean, total = each @ iterate / steps, each @ weight
    mean_x, mean_y = each @ (weight * x) / total, each @ (weight * y) / total
    dx, dy = x - mean_x[None], y - mean_y[None]
    return Blocks(
        steps=np.full(1, float(steps)),
        mean=mean,
        square=each @ (iterate - mean[None]) ** 2,
        drift=time @ iterate,
        weight=total,
        mean_x=mean_x,
        mean_y=mean_y,
        xx=each @ (weight * dx * dx),
        xy=each @ (weight * dx * dy),
        yy=each @ (weight * dy * dy),
    )


@dataclass(frozen=True)
class Release:
    """What one plan told the public: trace moments per block, the last iterate, and how it was made.

    There is no field for losses, norms, clipped fractions or batch sizes: a diagnostic is a mechanism with a cost.
    `noise` is "secure" or "simulated"; a simulated release is not private. `cross` and `trace` are kept only on
    request. With a leading axis of replicas (simulated studies) every array has it. `before` are the releases of
    earlier phases, if what was asked here depends on what they told.
    """

    plan: Plan
    noise: str
    settings: Mapping[str, Any]
    blocks: Blocks
    last: np.ndarray
    trace: Point | None = None
    cross: Cross | None = None
    before: tuple["Release", ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Of all phases, in order: what all of this cost is the price of them together."""
        return (*(one.plan for one in self.before), self.plan)

    def save(self, folder: str | Path) -> Path:
        """Write `release.json` and `arrays.npz` into a new or replaced `folder`, all or nothing."""
        with new_folder(folder) as scratch:
            np.savez(scratch / "arrays.npz", **self._arrays())  # pyright: ignore[reportArgumentType]
            facts = {
                "format": FORMAT,
                "plan": self.plan.to_dict(),
                "noise": self.noise,
                "settings": dict(self.settings),
                "before": len(self.before),
                "sha256": _digest(scratch / "arrays.npz"),
            }
            (scratch / "release.json").write_text(json.dumps(facts, indent=2) + "\n")
            for number, phase in enumerate(self.before, 1):
                phase.save(scratch / f"phase-{number}")
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> "Release":
        """Read what `save` wrote; a truncated, altered or foreign folder is refused."""
        folder = Path(folder)
        facts = _read_facts(folder)
        arrays = _read_arrays(folder / "arrays.npz", facts["sha256"])
        try:
            blocks = Blocks(*(arrays[name] for name in Blocks._fields))
            trace = Point(*(arrays[f"trace_{name}"] for name in Point._fields)) if "trace_x" in arrays else None
            cross = Cross(arrays["cross_xx"], arrays["cross_yx"]) if "cross_xx" in arrays else None
            before = tuple(cls.load(folder / f"phase-{number}") for number in range(1, facts.get("before", 0) + 1))
            kept = (facts["noise"], facts["settings"], blocks, arrays["last"], trace, cross, before)
            return cls(Plan(**facts["plan"]), *kept)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{folder} is not a release of format {FORMAT}: its plan or arrays are not: {error}"
            ) from None

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {**self.blocks._asdict(), "last": self.last}
        for name, kept in (("trace", self.trace), ("cross", self.cross)):
            if kept is not None:
                arrays |= {f"{name}_{field}": value for field, value in kept._asdict().items()}
        return arrays


def tail_mean(release: Release, burn_in: float = 0.2) -> np.ndarray:
    """Mean of the iterates after the first share `burn_in`, all of φ, shape (…, |φ|)."""
    steps, mean = (np.asarray(field) for field in release.blocks[:2])
    first = round(burn_in * mean.shape[-2])
    return (steps * mean)[..., first:, :].sum(-2) / steps[..., first:, :].sum(-2)


def _read_facts(folder: Path) -> dict:
    for name in ("release.json", "arrays.npz"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a release: it has no {name}")
    try:
        facts = json.loads((folder / "release.json").read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{folder}/release.json is not JSON: {error}") from None
    names = {"format", "plan", "noise", "settings", "sha256"}
    if not isinstance(facts, dict) or names - set(facts) or facts["format"] != FORMAT:
        raise ValueError(f"{folder} is not a release of format {FORMAT}, which has {', '.join(sorted(names))}")
    if facts["noise"] not in ("secure", "simulated"):
        raise ValueError(f"{folder}/release.json: noise={facts['noise']!r} must be secure or simulated")
    return facts


def _read_arrays(path: Path, digest: str) -> dict[str, np.ndarray]:
    """The arrays, from the very bytes that were checked."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path} does not match its checksum: it was altered or cut short")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return dict(file)
    except (zipfile.BadZipFile, EOFError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no arrays: {error}") from None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
