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

SAMPLING, OVERFLOW, NORMAL, PUBLIC = 1, 2, 3, 4


class Noise:
    """Independent random words for each (purpose, chunk); the same pair always gives the same words.

    `kind` is "secure" or "simulated". The key is never shown.
    """

    __slots__ = ("_key", "kind")
    kind: Literal["secure", "simulated"]

    def __init__(self, key: bytes, kind: Literal["secure", "simulated"]):
        """Use `secure()` or `simulated(seed)` instead."""
        self._key, self.kind = key, kind

    def __repr__(self) -> str:
        return f"Noise({self.kind})"

    def __reduce__(self):
        raise TypeError("a noise stream holds a secret key and cannot be pickled")

    def words(self, purpose: int, chunk: int, count: int) -> np.ndarray:
        """`count` uniform 64-bit words. The nonce holds (counter 0, purpose, chunk), so streams never overlap."""
        nonce = bytes(8) + purpose.to_bytes(4, "little") + chunk.to_bytes(4, "little")
        cipher = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
        return np.frombuffer(cipher.update(bytes(8 * count)), dtype=np.uint64)

    def normals(self, chunk: int, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normals of `shape`, by Box and Muller in float64; they end at 8.5 sd."""
        count = int(np.prod(shape))
        half = (count + 1) // 2
        first, second = uniforms(self.words(NORMAL, chunk, 2 * half)).reshape(2, half)
        radius, angle = np.sqrt(-2 * np.log(first)), 2 * np.pi * second
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count].reshape(shape)

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
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
