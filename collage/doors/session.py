"""ONNX Runtime's session on Collage's modules: programs that are written for it change an import or a name."""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage import api
from collage.core.extras import need_compiler
from collage.doors.binding import IOBinding, given_value
from collage.doors.node_args import NodeArg, of_info, of_module
from collage.errors import InputError, UsageError, unknown_names
from collage.graph.value_type import TENSOR
from collage.module.module import NOT_PICKLED, CompiledModule
from collage.module.shaped import ShapedModule
from collage.runtime.inputs import collect_inputs
from collage.schedule.suffix import ValuePort

if TYPE_CHECKING:
    import onnx

log = logging.getLogger(__name__)

Module = CompiledModule | ShapedModule

_OWN, _CPU = "CollageExecutionProvider", "CPUExecutionProvider"
_IGNORED = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
"""Keywords of ONNX Runtime's session that have no meaning here."""
_WORK = ("budget_s", "effort", "level", "quick", "tune_trials")
"""Options of a compile that say how much work it does."""
_SHAPES = ("batch", "inputs", "shapes")
_THREADS = "intra_op_num_threads"


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


class InferenceSession:
    """A session with ONNX Runtime's methods, which runs a Collage module.

    - A ``.collage`` file, or a module, is run as it is.
    - An ``.onnx`` file (or its bytes, or ``hf://owner/name``) is compiled first, as ``collage.compile(quick=True)``
      does it: the fastest engine on the whole model, or a mix that is found to be faster within ten seconds. The module
      is kept in memory alone. What is measured goes to the usual database, so that the next session begins with the
      plan of this one. To compile for longer, and to start in milliseconds, use ``collage compile`` and the file that
      it writes.
    - A model with open shapes is compiled in the first ``run``, for its inputs, or when ``module`` is asked for. Runs
      with other shapes go to ONNX Runtime, with one warning. Models of tables and trees take any number of rows.

    ``sess_options`` is an ``onnxruntime.SessionOptions``. Its ``intra_op_num_threads`` are the threads of a model that
    is compiled, and its free dimension overrides fix dimensions of an ``.onnx`` file: runs with other sizes are errors.
    All other options that are not at their defaults, providers but those of the CPU, and their options have no meaning
    here: they are ignored, with one warning that names them. What else was added to the options by calls
    (``add_session_config_entry``, ``add_initializer``, ``register_custom_ops_library``) cannot be read back, and is
    ignored. With ``CPUExecutionProvider`` alone the model is compiled for the CPU. Other keywords are options of
    ``collage.compile``, such as ``budget_s``, ``tolerance`` or ``db``.

    Raises what ``collage.load`` and ``collage.compile`` raise, and UsageError for unknown keywords.
    """

    def __init__(
        self,
        path_or_module: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kw: Any,
    ) -> None:
        ignored = [name for name in _IGNORED if kw.pop(name, None)]
        changed = _changed(sess_options)
        names = [each if isinstance(each, str) else each[0] for each in providers or ()]
        ignored += sorted({*names} - {_OWN, _CPU})
        if any(provider_options or ()) or any(not isinstance(each, str) and each[1] for each in providers or ()):
            ignored.append("provider_options")
        self._sess_options = sess_options
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._checked: Callable[[Mapping[str, Any]], object] | None = None
        """Raises InputError for inputs of sizes that the session options do not allow, where the module takes them."""
        self._module: Module | None = None
        self._compile: Callable[[Mapping[str, Any] | None], Module] | None = None
        found = _module_of(path_or_module)
        if found is None:
            threads = changed.pop(_THREADS, None)
            options = {"quick": True, **kw} if not kw.keys() & {*_WORK} else dict(kw)
            if threads:
                options.setdefault("threads", threads)
            if names == [_CPU]:
                options.setdefault("device", "cpu")
        elif kw:
            raise UsageError(f"{', '.join(sorted(kw))}: for a model that is compiled, and this is a module.")
        ignored += changed
        if ignored:
            log.warning("ignored, since they have no meaning for Collage: %s", ", ".join(ignored))
        if found is None:
            self._open(path_or_module, options)
            return
        self._module = found
        self._inputs, self._outputs = of_module(found)
        self._about = ModelMetadata(producer_name="collage", graph_name=found.report.model)

    def _open(self, source: Any, options: Mapping[str, Any]) -> None:
        """Read a model, and compile it unless its shapes are open."""
        need_compiler()
        from collage.doors.free_dimensions import fix_free_dimensions
        from collage.frontend.read.load import load_onnx
        from collage.frontend.read.rows import take_rows
        from collage.frontend.read.shapes import fixed_inputs, model_inputs
        from collage.frontend.read.value_types import value_type
        from collage.frontend.read.weights import WeightFiles

        source = api.on_disk(Path(source) if isinstance(source, os.PathLike) else source)
        known = inspect.signature(api.compile).parameters
        if unknown := options.keys() - known.keys():
            raise unknown_names("option", unknown, known)
        options = {"progress": False, **options}
        with WeightFiles() as files:
            model = load_onnx(source, files)
            infos, fixed = model_inputs(model), fixed_inputs(model)
            options_given = self._sess_options is not None
            overridden = options_given and fix_free_dimensions(infos, model.graph.output, self._sess_options)
            self._inputs = [of_info(each) for each in infos]
            self._outputs = [of_info(each) for each in model.graph.output]
            self._about = _metadata(model)
            ports = [ValuePort(each.name, value_type(each.type)) for each in infos]
            is_open = any(port.type.kind == TENSOR and None in (port.type.shape or (None,)) for port in ports)
            is_open = is_open and not take_rows(model)
        if overridden and not is_open:
            shapes = {port.name: port.type.shape for port in ports if port.type.kind == TENSOR}
            options["shapes"] = {**shapes, **(options.get("shapes") or {})}
        if not is_open or options.keys() & {*_SHAPES}:
            self._module = api.compile(source, **options)
            return

        def checked(values: Mapping[str, Any]) -> dict[str, Any]:
            found = collect_inputs(ports, (), values, fixed=fixed)
            return dict(zip([port.name for port in ports], found, strict=True))

        def compiled(values: Mapping[str, Any] | None) -> Module:
            if values is None:
                return api.compile(source, **options)
            inputs = checked(values)
            shapes = {name: each.shape for name, each in inputs.items() if isinstance(each, np.ndarray)}
            return api.compile_shapes(source, [shapes], inputs=inputs, **options)

        self._compile = compiled
        if overridden:
            self._checked = checked

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The outputs of these names, or all, for inputs by name: arrays, values with DLPack, or ``OrtValue``.

        Raises InputError for a wrong name, dtype or shape of an input, and UsageError for an unknown output.
        """
        names = [each.name for each in self._outputs]
        if isinstance(output_names, str):
            raise UsageError(f"output_names must be a list of names, or None for all, not {output_names!r}.")
        if unknown := {*(output_names or ())} - {*names}:
            raise unknown_names("output", unknown, names)
        outputs = self._run(input_feed)
        return [outputs[name] for name in output_names or names]

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """``run``, whose outputs are ``OrtValue``."""
        binding = self.io_binding()
        for name, value in input_dict_ort_values.items():
            binding.bind_ortvalue_input(name, value)
        for name in output_names or [each.name for each in self._outputs]:
            binding.bind_output(name)
        binding.run()
        return binding.get_outputs()

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """``run`` in a thread, which calls ``callback(outputs, user_data, error)``; ``error`` is "" if all is well.

        Event loops use ``await module.run_async(inputs)`` of a module instead.
        """

        def work() -> None:
            try:
                outputs, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # an engine raises anything
                outputs, error = [], str(failure)
            callback(outputs, user_data, error)

        threading.Thread(target=work, daemon=True).start()

    def io_binding(self) -> IOBinding:
        """A binding of inputs and outputs, for ``run_with_iobinding``."""
        return IOBinding(self._run, [each.name for each in self._inputs], [each.name for each in self._outputs])

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run on what is bound. Raises what ``run`` raises."""
        iobinding.run()

    def get_inputs(self) -> list[NodeArg]:
        """The inputs in the model's order. Open extents have the names that the ``.onnx`` file gives them."""
        return self._inputs

    def get_outputs(self) -> list[NodeArg]:
        """The outputs in the model's order. A module knows the extents for which it was compiled, and no names."""
        return self._outputs

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: a compile fixes them to the values in the file."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """The metadata of an ``.onnx`` file; of a module the name alone."""
        return self._about

    def get_session_options(self) -> Any:
        """The options that the session was given, or the default ones."""
        if self._sess_options is None:
            from onnxruntime import SessionOptions

            self._sess_options = SessionOptions()
        return self._sess_options

    def end_profiling(self) -> str:
        """ "", as of a session without profiling. ``module.trace`` gives a time line."""
        self._nothing_done("end_profiling")
        return ""

    def get_profiling_start_time_ns(self) -> int:
        """0, as of a session without profiling."""
        self._nothing_done("get_profiling_start_time_ns")
        return 0

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Any = None) -> None:
        """Do nothing, with a warning: a compile chooses among all backends."""
        self._nothing_done("set_providers")

    def disable_fallback(self) -> None:
        """Do nothing, with a warning."""
        self._nothing_done("disable_fallback")

    def enable_fallback(self) -> None:
        """Do nothing, with a warning."""
        self._nothing_done("enable_fallback")

    def _nothing_done(self, method: str) -> None:
        if method not in self._told:
            self._told.add(method)
            log.warning("%s() has no meaning for Collage, and does nothing", method)

    def get_providers(self) -> list[str]:
        """Collage, and ONNX Runtime on the CPU for runs that need the original model."""
        return [_OWN, _CPU]

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """No options of each provider."""
        return {_OWN: {}, _CPU: {}}

    @property
    def module(self) -> Module:
        """The module that runs.

        Before the first run of a model with open shapes it is compiled as ``collage.compile`` does it without shapes:
        for one row if nothing but the first axis is open, and otherwise with an engine that takes any shapes.
        """
        return self._compiled(None)

    def __reduce__(self) -> Any:
        raise TypeError(NOT_PICKLED)

    def _compiled(self, values: Mapping[str, Any] | None) -> Module:
        """The module, which is compiled first if that was not done yet, for these inputs if there are any."""
        with self._lock:
            if self._module is None:
                assert self._compile is not None
                self._module = self._compile(values)
            return self._module

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs must be a mapping from names to arrays, not a {type(inputs).__name__}.")
        values = {name: given_value(value) for name, value in inputs.items()}
        if self._checked is not None:
            self._checked(values)
        return self._compiled(values).run(values)


def _module_of(given: Any) -> Module | None:
    """The module that is given, or in a file; None for a model. Raises UsageError for what is neither."""
    if isinstance(given, (CompiledModule, ShapedModule)):
        return given
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        return api.load(path) if path.suffix == ".collage" else None
    if isinstance(given, bytes) or type(given).__name__ == "ModelProto":
        return None
    raise UsageError(
        f"give the path of a .collage or .onnx file, its bytes, or a module, not a {type(given).__name__}."
    )


def _changed(options: Any) -> dict[str, Any]:
    """The session options that are not at their defaults. Raises UsageError for what are none."""
    if options is None:
        return {}
    from onnxruntime import SessionOptions

    if not isinstance(options, SessionOptions):
        raise UsageError(f"sess_options must be an onnxruntime.SessionOptions, not a {type(options).__name__}.")
    usual, found = SessionOptions(), {}
    for name in dir(usual):
        value = getattr(options, name)
        if not name.startswith("_") and not callable(value) and value != getattr(usual, name):
            found[name] = value
    return found


def _metadata(model: onnx.ModelProto) -> ModelMetadata:
    return ModelMetadata(
        model.producer_name,
        model.graph.name,
        model.domain,
        model.doc_string,
        model.graph.doc_string,
        model.model_version,
        {each.key: each.value for each in model.metadata_props},
    )
