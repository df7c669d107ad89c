"""Lowering of a Relax function to PrimFuncs in call order, and the buffers that they touch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from collage.backends.tvm_codegen.artifact import Array, BufferSlot, TensorSpec, TvmCall
from collage.backends.tvm_codegen.legalise import OPERATORS

logger = logging.getLogger(__name__)


class LoweringError(ValueError):
    """TVM cannot lower this function. The message names the operator or the reason."""


@dataclass(frozen=True, eq=False)
class LoweredKernel:
    """PrimFuncs in call order, not scheduled yet, with every buffer they touch."""

    funcs: Mapping[str, Any]
    calls: tuple[TvmCall, ...]
    params: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    intermediates: tuple[TensorSpec, ...]
    constants: tuple[Array, ...]


def lower(
    function: Any,
    prim_funcs: Mapping[str, Any] | None = None,
    operators: Mapping[str, Callable[[Any, Any], Any]] = {},
) -> LoweredKernel:
    """Lower a Relax function of tensors (one dataflow block, concrete shapes) to PrimFuncs in call order.

    `prim_funcs` holds the PrimFuncs that call_tir bindings in the function name. `operators` are further lowerings by
    the Relax names of their operators, which come before the usual ones. Raises `LoweringError` for
    symbolic shapes, outputs that are parameters or repeated, and operators TVM cannot lower.
    """
    params = [_spec(p.ty, f"parameter {p}") for p in function.params]
    _check_outputs(function)
    mod = _fuse(_legalise(function, prim_funcs or {}, operators))
    main = mod["main"]
    values = relax.analysis.get_var2val(main)
    slots: dict[int, BufferSlot] = {hash(p): BufferSlot("param", i) for i, p in enumerate(main.params)}
    written: dict[tuple[int, int], BufferSlot] = {}  # (variable of a call_tir, which of its outputs)
    returned: dict[tuple[int, int], int] = {}
    outputs: list[TensorSpec] = []
    intermediates: list[TensorSpec] = []
    constants: list[Array] = []
    calls: list[TvmCall] = []
    funcs: dict[str, Any] = {}

    def origin(var: Any) -> tuple[int, int]:
        value = values.get(var, None)
        if isinstance(value, tvm.ir.Var):
            return origin(value)
        if isinstance(value, relax.TupleGetItem):
            return origin(value.tuple_value)[0], int(value.index)
        return hash(var), 0

    results = _outputs(main)
    if len(results) == 1 and isinstance(results[0].ty, relax.TupleType):
        returned = {(origin(results[0])[0], i): i for i in range(len(results[0].ty.fields))}
    else:
        returned = {origin(var): i for i, var in enumerate(results)}
    outputs = [TensorSpec((), "")] * len(returned)

    def slot(arg: Any) -> BufferSlot:
        if isinstance(arg, tvm.ir.GenericConst):
            constants.append(np.array(np.from_dlpack(arg.value)))
            return BufferSlot("constant", len(constants) - 1)
        return slots[hash(arg)] if hash(arg) in slots else written[origin(arg)]

    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value, tvm.ir.Call):
                continue
            types = list(binding.var.ty.fields) if isinstance(binding.var.ty, relax.TupleType) else [binding.var.ty]
            reads = [slot(a) for a in value.args[1].fields]
            writes = []
            for i, ty in enumerate(types):
                spec = _spec(ty, f"result {i} of {value.args[0].name_hint}")
                if (key := (hash(binding.var), i)) in returned:
                    written[key] = BufferSlot("output", returned[key])
                    outputs[returned[key]] = spec
                else:
                    written[key] = BufferSlot("intermediate", len(intermediates))
                    intermediates.append(spec)
                writes.append(written[key])
            name = f"kernel_{len(calls)}"
            funcs[name] = mod[value.args[0]]
            calls.append(TvmCall(name, (*reads, *writes), len(writes)))
    if not all(spec.dtype for spec in outputs):
        raise LoweringError("an output is a constant: nothing to compute")
    return LoweredKernel(funcs, tuple(calls), tuple(params), tuple(outputs), tuple(intermediates), tuple(constants))


def _spec(ty: Any, what: str) -> TensorSpec:
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        raise LoweringError(f"{what} is not a tensor of known shape but {ty}")
    if not all(isinstance(d, tirx.IntImm) for d in ty.shape):
        raise LoweringError(f"{what} has a symbolic shape: {ty.shape}")
    spec = TensorSpec(tuple(int(d) for d in ty.shape), str(ty.dtype))
    if 0 in spec.shape:
        raise LoweringError(f"{what} has no elements: {spec.shape}")
    try:
        known = np.dtype(spec.dtype).kind in "fiub"
    except TypeError:
        known = False
    if not known:
        raise LoweringError(f"{what} has dtype {spec.dtype}, which numpy does not hand over")
    return spec


def _outputs(function: Any) -> list[Any]:
    """The variables a function returns, one a tensor."""
    body = function.body.body if isinstance(function.body, relax.SeqExpr) else function.body
    values = relax.analysis.get_var2val(function)
    while isinstance(body, tvm.ir.Var) and body in values and isinstance(values[body], tvm.ir.Var | relax.Tuple):
        body = values[body]
    fields = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    out = []
    for expr in fields:
        while isinstance(expr, tvm.ir.Var) and expr in values and isinstance(values[expr], tvm.ir.Var):
            expr = values[expr]
        out.append(expr)
    return out


def _check_outputs(function: Any) -> None:
    params = list(function.params)
    seen: list[Any] = []
    for i, var in enumerate(_outputs(function)):
        if not isinstance(var, tvm.ir.Var):
            raise LoweringError(f"output {i} is {type(var).__name__}, not a computed tensor")
        if any(var.same_as(p) for p in params):
            raise LoweringError(f"output {i} is the parameter {var} itself: nothing to compute")
        if any(var.same_as(s) for s in seen):
            raise LoweringError(f"output {i} returns {var} a second time")
        seen.append(var)


def _remaining_ops(function: Any) -> list[str]:
    """Operators that LegalizeOps left as they were."""
    allowed = {"relax.call_tir"}
    found: list[str] = []

    def visit(call: Any) -> None:
        name = str(getattr(call.op, "name", "")) if isinstance(call.op, tvm.ir.Op) else ""
        if name.startswith("relax.") and name not in allowed:
            found.append(name)

    tvm_ffi.structural_walk(function.body, (tvm.ir.Call, visit), order="post")
    return sorted(set(found))


def _legalise(function: Any, prim_funcs: Mapping[str, Any], operators: Mapping[str, Callable[[Any, Any], Any]]) -> Any:
    called: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tvm.ir.GlobalVar, called.append), order="post")
    if missing := sorted({v.name_hint for v in called} - set(prim_funcs)):
        raise LoweringError(f"the function calls {', '.join(missing)}, not among the PrimFuncs given")
    funcs = {v: prim_funcs[v.name_hint] for v in called}
    mod = tvm.IRModule({**funcs, tvm.ir.GlobalVar("main"): function.with_attr("global_symbol", "main")})
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.LegalizeOps({**OPERATORS, **operators}),
    ]
    try:
        mod = tvm.transform.Sequential(passes)(mod)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise LoweringError(f"TVM fails to legalise {_remaining_ops(function)}: {first_line(error)}") from error
    if left := _remaining_ops(mod["main"]):
        raise LoweringError(f"TVM's LegalizeOps does not lower {', '.join(left)}")
    return relax.transform.DeadCodeElimination(["main"])(mod)


def _lift_constants(function: Any) -> tuple[Any, list[Any]]:
    """The function with its constant tensors as further parameters, which FuseTIR takes, and those tensors."""
    variables: list[Any] = []
    constants: list[Any] = []

    def lift(constant: Any) -> Any:
        if not isinstance(constant.ty, relax.TensorType):
            return constant
        constants.append(constant)
        variables.append(relax.Var(f"constant_{len(constants)}", constant.ty))
        return variables[-1]

    body = tvm_ffi.structural_map(function.body, (tvm.ir.GenericConst, lift), order="post")
    lifted = relax.Function([*function.params, *variables], body, function.ret_ty)
    return lifted.with_attrs(function.attrs) if function.attrs else lifted, constants


def _fuse(mod: Any) -> Any:
    """The whole function as one PrimFunc if FuseTIR can, or TVM's usual groups."""
    mod = relax.transform.FoldConstant()(mod)
    main, constants = _lift_constants(mod["main"])
    builder = relax.BlockBuilder(tvm.IRModule({v: f for v, f in mod.functions.items() if v.name_hint != "main"}))
    inner = builder.add_func(main.without_attr("global_symbol").with_attr("Primitive", 1), "kernel")
    params = [relax.Var(p.name, p.ty) for p in mod["main"].params]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(inner, [*params, *constants]))
        builder.emit_func_output(result)
    try:
        return relax.transform.FuseTIR()(builder.get())
    except (RuntimeError, ValueError, TypeError) as error:
        logger.info("not one PrimFunc, taking TVM's fusion groups: %s", first_line(error))
    names = ("AnnotateTIROpPattern", "FuseOps", "FuseTIR", "DeadCodeElimination")
    try:
        return tvm.transform.Sequential([getattr(relax.transform, n)() for n in names])(mod)
    except (RuntimeError, ValueError, TypeError) as error:
        logger.info("not fused at all: %s", first_line(error))
    return mod


def first_line(error: BaseException) -> str:
    lines = [x for x in str(error).strip().splitlines() if x.strip()]
    return lines[-1].strip() if lines else type(error).__name__
