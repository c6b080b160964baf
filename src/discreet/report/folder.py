"""The folder of a run: everything that may be handed on, written all or nothing."""

import json
from pathlib import Path

from discreet.atomic import new_folder
from discreet.posterior.types import Posterior

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
