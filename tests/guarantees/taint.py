"""Reads the privacy boundary off a traced mechanism.

Every value has a level. Rows are RAW; the noise is SECRET; the sampled multiplicities are SAMPLED; the plan's clip
norm and noise scale are CLIP and SCALE (public, and recognised as the plan's own); the clip norm of a Laplace plan is
CLIP_L1. Only the primitives `bounded_sum` and `linear_sum` make BOUNDED, and only from public questions, SAMPLED
multiplicities and the clip norm of the plan, of the order that the plan means. Only `privatize` makes PUBLIC out of
BOUNDED, with SECRET noise that nothing else uses, and the scale and clip norm of the plan. Anything else done to a
value that is not public is RAW again; every output must be public. These steps are recognised by the identity of
their primitives, not by name.
"""

from collections import Counter
from enum import Enum

import jax
from jax.extend.core import Literal

from discreet.mechanism.clipping import bounded_sum_p, privatize_p
from discreet.mechanism.products import linear_sum_p


class Level(Enum):
    PUBLIC = 0
    CLIP = 1
    CLIP_L1 = 2
    SCALE = 3
    SAMPLED = 4
    SECRET = 5
    BOUNDED = 6
    RAW = 7


PUBLIC, CLIP, CLIP_L1, SCALE, SAMPLED, SECRET, BOUNDED, RAW = Level
CLIPS = {2: CLIP, 1: CLIP_L1}
OPEN = {PUBLIC, SCALE, *CLIPS.values()}
CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
}


class LeakError(Exception): ...


def assert_public(mechanism, arguments, levels, steps):
    """Raise LeakError unless every output of mechanism(*arguments) is public and `steps` answers were given.

    `levels` has the tree structure of `arguments`, with a Level at each leaf.
    """
    closed = jax.make_jaxpr(mechanism)(*arguments)
    flat = jax.tree.leaves(levels, is_leaf=lambda leaf: isinstance(leaf, Level))
    assert len(flat) == len(closed.jaxpr.invars), "one level per input"
    outs, answers = follow(closed.jaxpr, flat)
    if leaks := [index for index, level in enumerate(outs) if level not in OPEN]:
        raise LeakError(f"outputs {leaks} depend on rows or noise: {[outs[i].name for i in leaks]}")
    if answers != steps:
        raise LeakError(f"{answers} answers were released; the plan prices {steps}")


def follow(jaxpr, levels):
    """Levels of the outputs, and how many times `privatize` ran."""
    env = dict(zip(jaxpr.invars, levels, strict=True)) | dict.fromkeys(jaxpr.constvars, PUBLIC)
    _noise_is_used_once(jaxpr, env)
    answers = 0
    for eqn in jaxpr.eqns:
        ins = [PUBLIC if isinstance(var, Literal) else env[var] for var in eqn.invars]
        outs, count = _step(eqn, ins)
        answers += count
        env.update(zip(eqn.outvars, outs, strict=True))
        if SECRET in outs:
            _noise_is_used_once(jaxpr, {var: env[var] for var in eqn.outvars})
    return [PUBLIC if isinstance(var, Literal) else env[var] for var in jaxpr.outvars], answers


def _step(eqn, ins):
    if eqn.primitive in (bounded_sum_p, linear_sum_p):
        return [_bounded(eqn, ins)], 0
    if eqn.primitive is privatize_p:
        if ins[:3] != [BOUNDED, SECRET, SCALE] or ins[3] not in CLIPS.values():
            raise LeakError(f"privatize takes a bounded total, fresh noise and the plan's scales, got {_names(ins)}")
        return [PUBLIC], 1
    if all(level in OPEN for level in ins):
        return ins if len(ins) == 1 and eqn.primitive.name == "copy" else [PUBLIC] * len(eqn.outvars), 0
    if eqn.primitive.name == "scan":
        return _scan(eqn, ins)
    if eqn.primitive.name in CALLS:
        return follow(_inner(eqn), ins)
    if eqn.effects or "callback" in eqn.primitive.name or "infeed" in eqn.primitive.name:
        raise LeakError(f"{eqn.primitive.name} shows a value that is not public to the outside")
    return [RAW] * len(eqn.outvars), 0


def _bounded(eqn, ins):
    public, multiplicity, clip = ins[: eqn.params["num_public"]], ins[-2], ins[-1]
    if not all(level in OPEN for level in public):
        raise LeakError("the question depends on rows or noise")
    if multiplicity is not SAMPLED:
        raise LeakError("rows are weighted by something other than the sampled multiplicities")
    if clip not in CLIPS.values():
        raise LeakError("rows are clipped to something other than the plan's clip norm")
    if clip is not CLIPS[eqn.params["order"]]:
        raise LeakError("rows are clipped in another norm than the plan's")
    _no_side_effects(eqn.params["jaxpr"])
    return BOUNDED


def _no_side_effects(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.effects or "callback" in eqn.primitive.name:
            raise LeakError(f"the row function calls {eqn.primitive.name}: it would show a row to the outside")
        for inner in _inner_jaxprs(eqn):
            _no_side_effects(inner)


def _scan(eqn, ins):
    consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
    fixed, state, slices = ins[:consts], ins[consts : consts + carry], ins[consts + carry :]
    if SECRET in fixed + state:
        raise LeakError("the same noise would be used in every step of a scan")
    body = eqn.params["jaxpr"].jaxpr
    while True:
        outs, answers = follow(body, [*fixed, *state, *slices])
        joined = [_join(a, b) for a, b in zip(state, outs[:carry], strict=True)]
        if joined == state:
            return outs, answers * eqn.params["length"]
        state = joined


def _join(a, b):
    if a is b:
        return a
    return PUBLIC if {a, b} <= OPEN else RAW


def _noise_is_used_once(jaxpr, env):
    secret = {var for var, level in env.items() if level is SECRET}
    uses = Counter(var for eqn in jaxpr.eqns for var in eqn.invars if not isinstance(var, Literal) and var in secret)
    uses.update(var for var in jaxpr.outvars if not isinstance(var, Literal) and var in secret)
    if any(count > 1 for count in uses.values()):
        raise LeakError("the same noise is used twice")


def _inner(eqn):
    return _inner_jaxprs(eqn)[0]


def _inner_jaxprs(eqn):
    values = [
        leaf for value in eqn.params.values() for leaf in (value if isinstance(value, (tuple, list)) else [value])
    ]
    return [getattr(v, "jaxpr", v) for v in values if hasattr(getattr(v, "jaxpr", v), "eqns")]


def _names(levels):
    return [level.name for level in levels]
