"""Where randomness comes from: one ChaCha20 stream, keyed by the operating system or by a seed.

A seeded stream is the same code with a known key: good for studies and tests, and marked, because whoever knows the
key can subtract the noise.
"""

import hashlib
import secrets
from typing import Literal

import jax
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

_ZEROS = bytes(2**20)
SAMPLING, OVERFLOW, NORMAL, PUBLIC, LAPLACE = 1, 2, 3, 4, 5


class Noise:
    """Independent random words for each (purpose, chunk); the same pair always gives the same words.

    `kind` is "secure" or "simulated". The key is never shown.
    """

    __slots__ = ("_key", "_used", "kind")
    kind: Literal["secure", "simulated"]

    def __init__(self, key: bytes, kind: Literal["secure", "simulated"]):
        """Use `secure()` or `simulated(seed)` instead."""
        self._key, self.kind, self._used = bytearray(key), kind, False

    def __repr__(self) -> str:
        return f"Noise({self.kind})"

    def claim(self) -> None:
        """Refuse a second run with a secure stream: the same noise in two releases protects neither."""
        if self._used and self.kind == "secure":
            raise ValueError("this secure stream has served a run: every run needs a stream of its own, secure()")
        self._used = True

    def forget(self) -> None:
        """Overwrite the key: what was drawn cannot be drawn again. Python may have moved copies of it before."""
        self._key[:] = bytes(len(self._key))
        self._key.clear()

    def __reduce__(self):
        raise TypeError("a noise stream holds a secret key and cannot be pickled")

    def words(self, purpose: int, chunk: int, count: int) -> np.ndarray:
        """`count` uniform 64-bit words. The nonce holds (counter 0, purpose, chunk), so streams never overlap."""
        if not self._key:
            raise ValueError("this noise stream has forgotten its key: every run needs a stream of its own")
        nonce = bytes(8) + purpose.to_bytes(4, "little") + chunk.to_bytes(4, "little")
        cipher = Cipher(algorithms.ChaCha20(bytes(self._key), nonce), mode=None).encryptor()
        words = np.empty(count, np.uint64)
        told = words.view(np.uint8).data
        for first in range(0, len(told), len(_ZEROS)):  # piece by piece: a second buffer of full size costs more
            cipher.update_into(_ZEROS[: len(told) - first], told[first : first + len(_ZEROS)])
        return words

    def normals(self, chunk: int, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normals of `shape`, by Box and Muller in float64; they end at 8.5 sd."""
        count = int(np.prod(shape))
        half = (count + 1) // 2
        first, second = uniforms(self.words(NORMAL, chunk, 2 * half)).reshape(2, half)
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)

    def laplaces(self, chunk: int, shape: tuple[int, ...]) -> np.ndarray:
        """Standard Laplace draws of `shape`, density exp(−|x|) / 2, by the inverse distribution function in float64.

        −log u has a spare bit of the first word as its sign. 52 bits of u would leave gaps wider than the grid of the
        answers in the tails, with a probability of about noise_multiplier · 2⁻³²; 104 bits leave 2⁻⁸⁴, and end at 72.8.
        """
        first, second = self.words(LAPLACE, chunk, 2 * int(np.prod(shape))).reshape(2, *shape)
        high = (first >> np.uint64(12)).astype(np.float64)
        sign = 1 - 2 * (first & np.uint64(1)).astype(np.float64)
        return -sign * np.log((high + uniforms(second)) * 2.0**-52)

    def draw(self, kind: str, chunk: int, shape: tuple[int, ...]) -> np.ndarray:
        """Standard draws of a plan's `noise_kind`."""
        return {"gaussian": self.normals, "laplace": self.laplaces}[kind](chunk, shape)

    def public_key(self) -> jax.Array:
        """A key for the draws that may be published, independent of noise and sampling."""
        return jax.random.key(int(self.words(PUBLIC, 0, 1)[0] >> np.uint64(33)))


def secure() -> Noise:
    """Noise from the operating system's entropy: the only kind that makes a release private."""
    return Noise(secrets.token_bytes(32), "secure")


def simulated(seed: int) -> Noise:
    """Repeatable noise for studies and tests. Not private: the release says so."""
    return Noise(hashlib.sha256(f"discreet simulated {seed}".encode()).digest(), "simulated")


def uniforms(words: np.ndarray) -> np.ndarray:
    """Midpoints of 2⁵² equal cells of (0, 1): never 0, never 1, all exact in float64."""
    value = (words >> np.uint64(12)).view(np.int64).astype(np.float64)
    value += 0.5
    value *= 2.0**-52
    return value
