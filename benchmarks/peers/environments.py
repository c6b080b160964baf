"""Where each worker runs: the project's environment, or one of its own made on first use."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Peer(NamedTuple):
    """A worker's script, what it is given, the packages of its own environment (none: the project's), and how many
    threads XLA has (None: as many as there are cores, its default).
    """

    script: str
    given: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    threads: int | None = None


PEERS = {
    "vmap(grad)": Peer("vmap_grad", ("plain",)),
    "vmap(grad), tuned": Peer("vmap_grad", ("tuned",), threads=1),
    "jax-privacy, scan": Peer("jax_privacy_scan", ("plain",)),
    "jax-privacy, scan, tuned": Peer("jax_privacy_scan", ("tuned",), threads=1),
    "jax-privacy, loop": Peer("jax_privacy_loop", ("plain",)),
    "jax-privacy, loop, tuned": Peer("jax_privacy_loop", ("tuned",), threads=1),
    "Opacus": Peer("opacus_sgd", (), ("torch==2.13.0", "opacus==1.6.0", "numpy==2.4.6")),
    "d3p": Peer("d3p_svi", (), ("d3p==0.2.0", "jax[cpu]==0.4.30", "numpyro==0.15.3", "numpy==1.26.4", "scipy==1.12.0")),
    "NumPyro, plate": Peer("numpyro_plate"),
    "NumPyro, indices outside": Peer("numpyro_outside"),
    "NumPyro, indices outside, one thread": Peer("numpyro_outside", threads=1),
}


def python_for(peer: Peer, folder: Path) -> Path:
    """The Python that runs this worker: this one, or that of an environment within `folder`."""
    if not peer.packages:
        return Path(sys.executable)
    place = folder.absolute() / peer.script
    python, stamp = place / "bin" / "python", place / "installed.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(peer.packages):
        _run(sys.executable, "-m", "venv", "--clear", str(place))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages)
        stamp.write_text("\n".join(peer.packages))
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        why = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "nothing was said")
        raise RuntimeError(f"{' '.join(command[1:])}: {why}")
