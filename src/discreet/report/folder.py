"""The folder of a run: everything that may be handed on, written all or nothing."""

import json
from dataclasses import replace
from pathlib import Path

from discreet.atomic import new_folder
from discreet.families.described import described
from discreet.posterior.types import Posterior
from discreet.release import Release
from discreet.schema import Schema

NAMES = ("posterior.nc", "release", "guarantee.json", "schema.toml", "report.html")


def save_run(target: str | Path, posterior: Posterior, html: str) -> Path:
    """Write posterior.nc, release/, guarantee.json, schema.toml and report.html into `target`.

    An earlier run is replaced; a folder that holds anything else is refused.
    """
    promise = json.dumps(posterior.guarantee.to_dict(), indent=2, ensure_ascii=False)
    with new_folder(target) as folder:
        posterior.save(folder / "posterior.nc")
        if posterior.release is not None:
            posterior.release.save(folder / "release")
        if posterior.schema is not None:
            posterior.schema.save(folder / "schema.toml")
        (folder / "guarantee.json").write_text(promise + "\n", encoding="utf-8")
        (folder / "report.html").write_text(html, encoding="utf-8")
    return Path(target)


def load_run(target: str | Path) -> Posterior:
    """What `save_run` wrote: the posterior with its release and schema, and its model if that is a ready one.

    A folder that lacks any part is refused.
    """
    folder = Path(target)
    missing = [name for name in NAMES if not (folder / name).exists()]
    if missing:
        raise ValueError(f"{folder} is not the folder of a whole run: it has no {', '.join(missing)}")
    release = Release.load(folder / "release")
    schema = Schema.load(folder / "schema.toml")
    posterior = Posterior.load(folder / "posterior.nc", schema=schema)
    promise = json.loads((folder / "guarantee.json").read_text(encoding="utf-8"))
    if promise != json.loads(json.dumps(posterior.guarantee.to_dict())):
        raise ValueError(f"{folder} is of two runs: guarantee.json and posterior.nc promise different things")
    return replace(posterior, release=release, model=described(posterior.info.get("model"), schema))
