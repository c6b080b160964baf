"""Where each worker runs: the project's environment, or one of its own made on first use."""

import subprocess
import sys
from pathlib import Path

PEERS = {
    "vmap_grad": None,
    "jax_privacy_scan": None,
    "jax_privacy_loop": None,
    "numpyro_plate": None,
    "numpyro_outside": None,
    "opacus_sgd": ["torch==2.13.0", "opacus==1.6.0", "numpy==2.4.6"],
    "d3p_svi": ["d3p==0.2.0", "jax[cpu]==0.4.30", "numpyro==0.15.3", "numpy==1.26.4", "scipy==1.12.0"],
}


def python_for(name: str, folder: Path) -> Path:
    """The Python that runs the worker `name`: this one, or that of an environment within `folder`."""
    wanted = PEERS[name]
    if wanted is None:
        return Path(sys.executable)
    place = folder.absolute() / name
    python, stamp = place / "bin" / "python", place / "installed.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(wanted):
        _run(sys.executable, "-m", "venv", "--clear", str(place))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
        stamp.write_text("\n".join(wanted))
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        why = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "nothing was said")
        raise RuntimeError(f"{' '.join(command[1:])}: {why}")
