"""From a trained model to a package, with a check that the package answers as the model does."""

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from opengem.data import Dataset
from opengem.data.arrow_sink import write_table
from opengem.errors import BackendUnavailable, CheckFailed, ConfigError
from opengem.evaluation import PlattCalibration
from opengem.jagged import Batch
from opengem.schema.inputs import InputSpec
from opengem.serving import package as names
from opengem.serving.machine import made_for
from opengem.serving.package import Package, Program, load_program, write_facts
from opengem.serving.parity import parity_cases
from opengem.serving.signature import Served, dynamic_shapes, from_named, tracing_inputs

Format = Literal["pt2", "aoti"]


def export(
    model: nn.Module,
    data: Dataset,
    inputs: InputSpec,
    out: Path,
    *,
    sample: Sequence[Batch],
    card: Mapping[str, Any],
    format: Format = "pt2",
    role: Literal["student", "teacher"] = "student",
    history: int | Mapping[str, int] | None = None,
    calibration: PlattCalibration | None = None,
    force: bool = False,
    tolerance: float = 1e-4,
) -> Package:
    """Write a package and check that it answers as the model does.

    The package is compared with the model on the sample, and on what `parity_cases` makes of it: requests of every
    size. It appears at `out` only when the check holds.

    Args:
        model: A trained model: `Batch -> Output`.
        data: The data set it was trained on; its encoder, schema and ads go into the package.
        inputs: What the model was built for.
        out: Folder of the package; it must not exist.
        sample: Batches to check on; they and the model's answers are stored in the package.
        card: Facts for the model card: plain dictionaries, lists, text and numbers.
        format: `pt2` is a portable `torch.export` program; `aoti` is compiled for this torch and device.
        role: What the model is. A teacher is refused.
        history: Most events of a stream that the model reads; `model.config.history` if not given.
        calibration: Applied to the probabilities after the model.
        force: Export a teacher all the same, for offline study.
        tolerance: Largest allowed difference of log-odds, above 0.

    Returns:
        The package.

    Raises:
        ConfigError: An argument does not fit, or `role` is `teacher` without `force`.
        BackendUnavailable: `aoti` was asked for and there is no C++ compiler.
        CheckFailed: The package differs from the model by more than `tolerance`.
    """
    out = Path(out)
    _check(model, data, inputs, out, sample, format, role, force)
    facts = {
        "format": names.FORMAT,
        "kind": format,
        "role": role,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "opengem": metadata.version("opengem"),
        **made_for(format, _device(model)),
        "schema": {"fingerprint": inputs.fingerprint},
        "tasks": [t.name for t in inputs.tasks],
        "surfaces": list(inputs.surfaces),
        "history": data.history_limits(_history(model, history)),
        "calibrated": calibration is not None,
        "sizes": {"parameters": sum(p.numel() for p in model.parameters())},
        "card": dict(card),
    }
    part = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    was_training = model.training
    try:
        model.eval()
        device = _device(model)
        served = Served(model, inputs)
        _write_model(served, inputs, part / names.MODEL, format, device)
        cases = parity_cases(sample, inputs, facts["history"])
        expected = _answers(lambda named: model(from_named(named, inputs)).logits_BT.float(), cases, device)
        program = load_program(part / names.MODEL, facts, inputs)
        facts["parity"] = _parity(program, cases, expected, device, tolerance)
        _write_data(part, data, cases, expected, calibration)
        write_facts(part, facts)
        part.rename(out)
    finally:
        model.train(was_training)
        shutil.rmtree(part, ignore_errors=True)
    return Package.open(out)


def _check(model, data, inputs, out, sample, format, role, force) -> None:
    """Refuse what cannot become a package, before any work."""
    if role not in ("student", "teacher"):
        raise ConfigError(f'role must be "student" or "teacher". Received: "{role}".')
    if role == "teacher" and not force:
        raise ConfigError(
            "role must be student: GEM, the teacher, is not served. It is too slow for a request and is there to "
            "teach students, which are small and calibrated for their surface.\n"
            "  fix: distil a student from it and export that, or set force to export it for offline study"
        )
    if format not in ("pt2", "aoti"):
        raise ConfigError(f'format must be "pt2" or "aoti". Received: "{format}".')
    if format == "aoti" and not _compiler():
        raise BackendUnavailable(
            'format "aoti" needs a C++ compiler and none of $CXX, g++ and clang++ was found. Install one, or use '
            'format "pt2".'
        )
    if inputs != data.inputs:
        raise ConfigError(
            f"data must be the data set that the model was built for (schema {inputs.fingerprint}). "
            f"Received: {data.folder} (schema {data.schema_fingerprint})."
        )
    if not any(batch.num_examples for batch in sample):
        raise ConfigError("sample must hold at least one example to check the package on. Received: none.")
    if out.exists():
        raise ConfigError(f"{out} exists; a package is never overwritten. Name another folder or remove it.")


def _compiler() -> str | None:
    return next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)


def _history(model: nn.Module, history: int | Mapping[str, int] | None) -> int | Mapping[str, int]:
    if history is None:
        history = getattr(getattr(model, "config", None), "history", None)
    if history is None:
        raise ConfigError("history must be given for a model without config.history.")
    return history


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _write_model(served: Served, inputs: InputSpec, path: Path, format: Format, device: torch.device) -> None:
    tracing = {name: tensor.to(device) for name, tensor in tracing_inputs(inputs).items()}
    with torch.no_grad():
        program = torch.export.export(
            served, (tracing,), dynamic_shapes=(dynamic_shapes(inputs),), strict=False
        )
        if format == "aoti":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's compiler warns of its own old parts
                torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        else:
            torch.export.save(program, path)


def _answers(
    program: Program, cases: dict[str, dict[str, Tensor]], device: torch.device
) -> dict[str, Tensor]:
    with torch.no_grad():
        return {
            case: program({name: tensor.to(device) for name, tensor in named.items()}).cpu()
            for case, named in cases.items()
        }


def _parity(
    program: Program,
    cases: dict[str, dict[str, Tensor]],
    expected: dict[str, Tensor],
    device: torch.device,
    tolerance: float,
) -> dict[str, Any]:
    """Compare the loaded program with the model's own answers."""
    differences = {}
    for case, answer in _answers(program, cases, device).items():
        if answer.shape != expected[case].shape or not bool(torch.isfinite(answer).all()):
            raise CheckFailed(
                f'the package must answer "{case}" with finite log-odds {tuple(expected[case].shape)}. '
                f"Received: {tuple(answer.shape)}, {int((~torch.isfinite(answer)).sum())} not finite."
            )
        differences[case] = float((answer - expected[case]).abs().max())
    worst = max(differences, key=differences.__getitem__)
    if not differences[worst] <= tolerance:
        raise CheckFailed(
            f"the package must differ from the model by at most {tolerance:g} in log-odds. Received: a largest "
            f'difference of {differences[worst]:.3g} on "{worst}". Nothing was written.'
        )
    return {"tolerance": tolerance, "largest_difference": differences[worst], "cases": differences}


def _write_data(
    folder: Path,
    data: Dataset,
    cases: dict[str, dict[str, Tensor]],
    expected: dict[str, Tensor],
    calibration: PlattCalibration | None,
) -> None:
    """Write all but the model: inputs, schema, encoder, ads, the sample with its answers, calibration."""
    (folder / names.INPUTS).write_text(json.dumps(data.inputs.to_dict(), indent=1), encoding="utf-8")
    shutil.copyfile(data.folder / "schema.toml", folder / names.SCHEMA)
    data.encoder.save(folder / names.ENCODER)
    write_table(folder / names.ADS, data.ads())
    tensors = {f"{case}/{name}": t.clone() for case, named in cases.items() for name, t in named.items()}
    answers = {f"{case}/expected": answer for case, answer in expected.items()}
    save_file(tensors | answers, folder / names.SAMPLE)
    if calibration is not None:
        calibration.save(folder / names.CALIBRATION)
