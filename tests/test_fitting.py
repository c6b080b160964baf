import math
from dataclasses import replace

import numpy as np
import pytest

from discreet import fitting, planner
from discreet.evaluate import ep
from discreet.families.glm import glm
from discreet.fitting import encode, fit, naive_posterior, simulated
from discreet.methods import sep
from discreet.methods.sites import SiteError, linear
from discreet.model import Linear
from discreet.posterior.reading import Options, read
from discreet.posterior.trace import TraceError
from discreet.posterior.types import Posterior
from discreet.release import Release
from discreet.schema import Numeric, Schema
from tests import tiny

BUDGET = {"epsilon": tiny.EPSILON, "delta": tiny.DELTA}


@pytest.fixture
def no_row_is_asked(monkeypatch):
    monkeypatch.setattr(fitting, "run_phases", lambda *_, **__: pytest.fail("the rows were asked"))


def test_noise_is_secure_unless_asked_otherwise():
    found = tiny.posterior()
    assert found.guarantee.noise == "secure"
    assert found.guarantee.private
    assert found.guarantee.epsilon <= tiny.EPSILON
    assert found.guarantee.delta == tiny.DELTA
    assert found.release.noise == "secure"
    assert "NOT PRIVATE" not in f"{found!r} {found.guarantee}"


def test_simulated_noise_is_never_called_private():
    found = tiny.posterior(3)
    assert not found.guarantee.private
    assert found.release.noise == "simulated"
    assert str(found.guarantee).startswith("NOT PRIVATE")
    assert "NOT PRIVATE" in repr(found)


def test_two_secure_fits_differ_and_two_rehearsals_of_a_seed_agree():
    again = fit(tiny.MODEL, tiny.rows(), **BUDGET, choice=tiny.choice(), draws=10)
    assert (again.release.last != tiny.posterior().release.last).all()
    again = fit(tiny.MODEL, tiny.rows(), **BUDGET, choice=tiny.choice(), noise=simulated(3), draws=10)
    np.testing.assert_array_equal(again.release.last, tiny.posterior(3).release.last)
    np.testing.assert_array_equal(again.release.trace.y, tiny.posterior(3).release.trace.y)


def test_a_posterior_carries_what_it_was_made_of():
    found = tiny.posterior()
    assert found.draws["coefficients"].shape == (1, tiny.DRAWS, 3)
    assert found.z.shape == (1, tiny.DRAWS, 3)
    assert found.info["plan"] == tiny.choice().plan.to_dict() == found.release.plan.to_dict()
    assert (found.model, found.schema) == (tiny.MODEL, tiny.SCHEMA)
    assert np.isfinite(found.z).all()


@pytest.mark.usefixtures("no_row_is_asked")
def test_a_plan_beyond_the_budget_is_refused_before_any_row_is_asked():
    with pytest.raises(ValueError, match=r"more than epsilon=0\.1"):
        fit(tiny.MODEL, tiny.rows(), epsilon=0.1, delta=tiny.DELTA, choice=tiny.choice())
    with pytest.raises(ValueError, match="more than epsilon"):
        fit(tiny.MODEL, tiny.rows(), epsilon=tiny.EPSILON, delta=tiny.DELTA / 10, choice=tiny.choice())


@pytest.mark.usefixtures("no_row_is_asked")
@pytest.mark.parametrize(
    ("epsilon", "delta", "match"),
    [
        (0.0, 1e-4, "epsilon=0.0"),
        (float("nan"), 1e-4, "epsilon=nan"),
        (1.0, 0.0, "delta=0.0"),
        (1.0, 1.0, "delta=1"),
    ],
)
def test_a_budget_that_is_none_is_refused_before_any_row_is_asked(epsilon, delta, match):
    with pytest.raises(ValueError, match=match):
        fit(tiny.MODEL, tiny.rows(), epsilon=epsilon, delta=delta, choice=tiny.choice())


def test_a_plan_for_another_number_of_rows_is_refused():
    with pytest.raises(ValueError, match=r"num_rows=300 but the table has 299"):
        fit(tiny.MODEL, tiny.rows(299), **BUDGET, choice=tiny.choice())


def test_rows_without_the_model_s_columns_are_refused():
    fewer = encode(tiny.table(), tiny.SCHEMA.select(["age", "ill"]))
    with pytest.raises(ValueError, match="sex"):
        fit(tiny.MODEL, fewer, **BUDGET, choice=tiny.choice())


def test_without_a_choice_the_plan_is_made_from_public_facts_alone(monkeypatch):
    seen = []

    def choose(*given, sample):
        seen.append((*given, sample))
        return tiny.choice()

    monkeypatch.setitem(planner.METHODS, "one-step", choose)
    fit(tiny.MODEL, tiny.rows(), **BUDGET, draws=10)
    assert seen == [(tiny.MODEL, tiny.SCHEMA, tiny.NUM_ROWS, tiny.EPSILON, tiny.DELTA, None)]


def test_sites_are_one_more_method_of_the_same_fit():
    """At ε = 10⁴ hardly any noise is left, but rows are still sampled: over twelve seeds means were off EP's own by .05
    to .22 sds (the largest of three; about .1 each), sds by .04 at most. Five times that: an alarm once in 10⁶.
    """
    found = fit(tiny.MODEL, tiny.rows(), epsilon=1e4, delta=tiny.DELTA, method="sep", noise=simulated(4))
    assert (found.info["method"], found.release.settings["method"]) == ("DP-SEP, noise-aware", "sep")
    assert found.guarantee.epsilon <= 1e4
    exact = ep.ep(linear(tiny.MODEL), tiny.SCHEMA.encode(tiny.table()))
    sd = np.sqrt(np.diag(exact.cov[0]))
    assert np.abs((found.z[0].mean(0) - exact.mean[0]) / sd).max() < 0.5
    assert np.abs(found.z[0].std(0) / sd - 1).max() < 0.1
    assert found.info["warnings"] == []
    assert np.abs(found.info["clip_bias"]).max() < 0.1
    naive = naive_posterior(found)
    assert naive.info["method"] == "DP-SEP, last iterate"
    assert np.abs((naive.z[0].mean(0) - exact.mean[0]) / sd).max() < 0.5


@pytest.mark.usefixtures("no_row_is_asked")
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"method": "vi"}, "method='vi' must be one of one-step, dpvi, sep, score"),
        ({"method": "sep", "reading": "iterate average"}, "not with iterate average"),
        ({"method": "sep", "options": Options(solver="exact")}, "solver='exact'"),
        ({"method": "sep", "choice": tiny.choice()}, "leave method="),
        ({"sample": {"age": [30]}, "choice": tiny.choice()}, "sample= and values= out"),
        ({"values": {"clip_norm": 1.0}, "choice": tiny.choice()}, "sample= and values= out"),
        ({"method": "dpvi", "sample": {"age": [30], "sex": ["f"]}}, "no use for a public sample"),
        ({"method": "dpvi", "values": {"clip": 1.0}}, r"values=\['clip'\] are none of this choice's"),
    ],
)
def test_a_method_that_is_none_or_does_not_fit_is_refused_before_any_row_is_asked(asked, message):
    with pytest.raises(ValueError, match=message):
        fit(tiny.MODEL, tiny.rows(), **BUDGET, **asked)


@pytest.mark.usefixtures("no_row_is_asked")
def test_sites_that_do_not_exist_are_refused_before_any_row_is_asked():
    """A Gaussian outcome has an sd that is no coefficient; a likelihood that outgrows the prior has no moments."""
    schema = Schema((Numeric("age", 20, 60), Numeric("y", 0, 1)))
    rows = encode({"age": [30.0, 40.0], "y": [0.1, 0.9]}, schema)
    with pytest.raises(SiteError, match="not coefficients"):
        fit(glm("gaussian", "y", ["age"], schema), rows, **BUDGET, method="sep")
    linear = tiny.MODEL.log_likelihood
    wild = replace(tiny.MODEL, log_likelihood=Linear(linear.features, lambda u, rest, row: u**2))
    choice = tiny.choice()._replace(settings=sep.Settings(100.0))
    with pytest.raises(SiteError, match="do not exist"):
        fit(wild, tiny.rows(), **BUDGET, choice=choice)


def test_the_naive_reading_is_of_the_same_release_at_the_same_price():
    found = naive_posterior(tiny.posterior())
    assert found.guarantee == tiny.posterior().guarantee
    assert found.release is tiny.posterior().release
    assert found.info["method"] == "last iterate"
    assert found.z.shape == tiny.posterior().z.shape


def test_the_naive_reading_needs_the_release():
    whole = tiny.posterior()
    bare = Posterior(whole.draws, whole.z, whole.guarantee, whole.info)
    with pytest.raises(ValueError, match="without its release"):
        naive_posterior(bare)


def test_a_release_that_cannot_be_read_as_asked_is_not_lost():
    """The fit starts 30 prior sds from home, and is not there yet."""
    choice = tiny.choice()
    start = np.array(choice.settings.start)
    start[:3] += 60
    far = choice._replace(settings=choice.settings._replace(start=start))
    with pytest.raises(TraceError, match="not converged") as refusal:
        fit(tiny.MODEL, tiny.rows(), **BUDGET, choice=far, reading="iterate average")
    kept = refusal.value.release
    assert isinstance(kept, Release)
    assert kept.noise == "secure"
    assert "budget is spent" in str(refusal.value)
    found = read(kept, tiny.MODEL, tiny.posterior().guarantee, "last iterate", draws=50)
    assert found.info["method"] == "last iterate"
    assert found.release is kept
    assert np.isfinite(found.z).all()
    assert "prior sds" in found.info["warnings"][0]


@pytest.mark.usefixtures("no_row_is_asked")
def test_an_unknown_reading_is_refused_before_any_row_is_asked():
    with pytest.raises(ValueError, match="reading='iterate mean'"):
        fit(tiny.MODEL, tiny.rows(), **BUDGET, choice=tiny.choice(), reading="iterate mean")


def test_without_noise_the_posterior_is_the_table_s_own():
    """However it is read, the mean is within half a posterior sd of the mode.

    Subsampling leaves .1 sd of noise in the mean of 3000 steps and 4000 draws another .02, so four sds of both are .4;
    the mean of a logistic posterior of 300 rows is .1 sd from its mode. Iterates that hardly move hardly show the
    curvature: the noise-aware reading was 2.2 times too wide when this was written, and never is 3.
    """
    found = tiny.noiseless()
    mode, sd = tiny.laplace().mean, np.sqrt(np.diag(tiny.laplace().covariance))
    for reading, widest in ((found, 2.0), (read(found.release, tiny.MODEL, found.guarantee), 3.0)):
        assert (np.abs(reading.z.mean((0, 1)) - mode) < 0.5 * sd).all()
        assert (reading.z.std((0, 1)) < widest * sd).all()
    assert found.info["method"] == "iterate average"


def test_without_noise_nothing_is_called_private(tmp_path):
    found = tiny.noiseless()
    assert found.guarantee.epsilon == math.inf
    assert not found.guarantee.private
    assert str(found.guarantee).startswith("NOT PRIVATE: ε = ∞")
    assert "NOT PRIVATE: ε = ∞" in repr(found)
    assert Posterior.load(found.save(tmp_path / "posterior.nc")).guarantee == found.guarantee


class Unread:
    """Rows whose number is public and whose values cannot be had."""

    num_rows, schema, unit, replicas = tiny.NUM_ROWS, tiny.SCHEMA, "row", None

    def __getattr__(self, name):
        pytest.fail(f"{name} was read")


def test_secure_noise_refuses_to_run_without_noise_before_anything_is_read():
    choice = tiny.noiseless_choice()
    with pytest.raises(ValueError, match="noise_multiplier=0 adds no noise"):
        fit(tiny.MODEL, Unread(), epsilon=math.inf, delta=tiny.DELTA, choice=choice)


@pytest.mark.usefixtures("no_row_is_asked")
def test_a_plan_without_noise_is_beyond_any_finite_budget():
    with pytest.raises(ValueError, match="costs ε = inf, more than epsilon=1e"):
        fit(tiny.MODEL, tiny.rows(), epsilon=1e300, delta=tiny.DELTA, choice=tiny.noiseless_choice())
