import pytest
import torch

from opengem.errors import ConfigError
from opengem.nn.gate import Gate


def test_forms_are_the_printed_formulas():
    x = torch.randn(3, 8)
    signed, printed = Gate(8, "signed"), Gate(8, "printed")
    torch.testing.assert_close(signed(x), x * torch.sigmoid(signed.score(x)))
    torch.testing.assert_close(printed(x), torch.sigmoid(x * printed.score(x)))
    assert torch.equal(Gate(8, "none")(x), x)


def test_only_the_signed_form_keeps_signs():
    x = torch.randn(100, 8)
    assert torch.equal(Gate(8, "signed")(x).sign(), x.sign())
    assert (Gate(8, "printed")(x) > 0).all()


def test_unknown_form_is_an_error():
    with pytest.raises(ConfigError, match="gate must be"):
        Gate(8, "soft")
