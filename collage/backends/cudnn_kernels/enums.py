"""Numbers of cuDNN 9's graph interface, as "cudnn_graph.h" has them.

A test compares each of them with the header where the wheel of cuDNN is installed: a class has the prefix of its names
there, and the members have the rest.
"""

from __future__ import annotations

from enum import IntEnum


class CudnnEnum(IntEnum):
    """Numbers whose names in the header have a prefix and a suffix around those of the members."""

    @classmethod
    def header_name(cls, name: str) -> str:
        """The name of a member in the header."""
        before, after = _AROUND[cls.__name__]
        return f"{before}{name}{after}"


_AROUND: dict[str, tuple[str, str]] = {
    "Kind": ("CUDNN_BACKEND_", "_DESCRIPTOR"),
    "Type": ("CUDNN_TYPE_", ""),
    "Attribute": ("CUDNN_ATTR_", ""),
    "Data": ("CUDNN_DATA_", ""),
    "Heuristic": ("CUDNN_HEUR_MODE_", ""),
    "Note": ("CUDNN_NUMERICAL_NOTE_", ""),
    "Function": ("CUDNN_POINTWISE_", ""),
    "Resampling": ("CUDNN_RESAMPLE_", ""),
    "Reduction": ("CUDNN_REDUCE_TENSOR_", ""),
    "Padding": ("CUDNN_", ""),
    "Norm": ("CUDNN_", ""),
    "Phase": ("CUDNN_NORM_FWD_", ""),
    "ConvolutionMode": ("CUDNN_", ""),
    "NanPropagation": ("CUDNN_", ""),
}


class Kind(CudnnEnum):
    """Kinds of descriptors (``cudnnBackendDescriptorType_t``)."""

    POINTWISE = 0
    CONVOLUTION = 1
    ENGINE = 2
    ENGINECFG = 3
    ENGINEHEUR = 4
    EXECUTION_PLAN = 5
    KNOB_CHOICE = 7
    OPERATION_CONVOLUTION_FORWARD = 10
    OPERATION_CONVOLUTION_BACKWARD_DATA = 12
    OPERATION_POINTWISE = 13
    OPERATIONGRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    MATMUL = 18
    OPERATION_MATMUL = 19
    REDUCTION = 21
    OPERATION_REDUCTION = 22
    RESAMPLE = 24
    OPERATION_RESAMPLE_FWD = 25
    OPERATION_NORM_FORWARD = 29
    DEVICEPROP = 38
    OPERATION_SDPA_FWD = 41
    OPERATION_SOFTMAX = 45


class Type(CudnnEnum):
    """Types of attributes (``cudnnBackendAttributeType_t``)."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    VOID_PTR = 6
    CONVOLUTION_MODE = 7
    HEUR_MODE = 8
    KNOB_TYPE = 9
    NAN_PROPOGATION = 10
    NUMERICAL_NOTE = 11
    POINTWISE_MODE = 14
    BACKEND_DESCRIPTOR = 15
    REDUCTION_OPERATOR_TYPE = 18
    RESAMPLE_MODE = 21
    PADDING_MODE = 22
    CHAR = 24
    FRACTION = 26
    NORM_MODE = 27
    NORM_FWD_PHASE = 28


class Attribute(CudnnEnum):
    """Attributes of descriptors (``cudnnBackendAttributeName_t``)."""

    POINTWISE_MODE = 0
    POINTWISE_MATH_PREC = 1
    POINTWISE_NAN_PROPAGATION = 2
    POINTWISE_RELU_LOWER_CLIP = 3
    POINTWISE_RELU_UPPER_CLIP = 4
    POINTWISE_RELU_LOWER_CLIP_SLOPE = 5
    POINTWISE_ELU_ALPHA = 6
    POINTWISE_SOFTPLUS_BETA = 7
    POINTWISE_SWISH_BETA = 8
    CONVOLUTION_COMP_TYPE = 100
    CONVOLUTION_CONV_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_FILTER_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    ENGINEHEUR_MODE = 200
    ENGINEHEUR_OPERATION_GRAPH = 201
    ENGINEHEUR_RESULTS = 202
    ENGINEHEUR_DEVICEPROP = 204
    ENGINECFG_ENGINE = 300
    ENGINECFG_KNOB_CHOICES = 302
    EXECUTION_PLAN_HANDLE = 400
    EXECUTION_PLAN_ENGINE_CONFIG = 401
    EXECUTION_PLAN_WORKSPACE_SIZE = 402
    EXECUTION_PLAN_JSON_REPRESENTATION = 405
    EXECUTION_PLAN_DEVICEPROP = 407
    KNOB_CHOICE_KNOB_TYPE = 600
    KNOB_CHOICE_KNOB_VALUE = 601
    OPERATION_CONVOLUTION_FORWARD_ALPHA = 700
    OPERATION_CONVOLUTION_FORWARD_BETA = 701
    OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702
    OPERATION_CONVOLUTION_FORWARD_W = 703
    OPERATION_CONVOLUTION_FORWARD_X = 704
    OPERATION_CONVOLUTION_FORWARD_Y = 705
    OPERATION_CONVOLUTION_BWD_DATA_ALPHA = 706
    OPERATION_CONVOLUTION_BWD_DATA_BETA = 707
    OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC = 708
    OPERATION_CONVOLUTION_BWD_DATA_W = 709
    OPERATION_CONVOLUTION_BWD_DATA_DX = 710
    OPERATION_CONVOLUTION_BWD_DATA_DY = 711
    OPERATION_POINTWISE_PW_DESCRIPTOR = 750
    OPERATION_POINTWISE_XDESC = 751
    OPERATION_POINTWISE_BDESC = 752
    OPERATION_POINTWISE_YDESC = 753
    OPERATIONGRAPH_HANDLE = 800
    OPERATIONGRAPH_OPS = 801
    TENSOR_BYTE_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_UNIQUE_ID = 906
    TENSOR_IS_VIRTUAL = 907
    TENSOR_IS_BY_VALUE = 908
    VARIANT_PACK_UNIQUE_IDS = 1000
    VARIANT_PACK_DATA_POINTERS = 1001
    VARIANT_PACK_WORKSPACE = 1003
    ENGINE_OPERATION_GRAPH = 1300
    ENGINE_GLOBAL_INDEX = 1301
    ENGINE_NUMERICAL_NOTE = 1303
    MATMUL_COMP_TYPE = 1500
    OPERATION_MATMUL_ADESC = 1520
    OPERATION_MATMUL_BDESC = 1521
    OPERATION_MATMUL_CDESC = 1522
    OPERATION_MATMUL_DESC = 1523
    REDUCTION_OPERATOR = 1600
    REDUCTION_COMP_TYPE = 1601
    OPERATION_REDUCTION_XDESC = 1610
    OPERATION_REDUCTION_YDESC = 1611
    OPERATION_REDUCTION_DESC = 1612
    RESAMPLE_MODE = 1700
    RESAMPLE_COMP_TYPE = 1701
    RESAMPLE_SPATIAL_DIMS = 1702
    RESAMPLE_POST_PADDINGS = 1703
    RESAMPLE_PRE_PADDINGS = 1704
    RESAMPLE_STRIDES = 1705
    RESAMPLE_WINDOW_DIMS = 1706
    RESAMPLE_NAN_PROPAGATION = 1707
    RESAMPLE_PADDING_MODE = 1708
    OPERATION_RESAMPLE_FWD_XDESC = 1710
    OPERATION_RESAMPLE_FWD_YDESC = 1711
    OPERATION_RESAMPLE_FWD_ALPHA = 1713
    OPERATION_RESAMPLE_FWD_BETA = 1714
    OPERATION_RESAMPLE_FWD_DESC = 1716
    OPERATION_NORM_FWD_MODE = 2000
    OPERATION_NORM_FWD_PHASE = 2001
    OPERATION_NORM_FWD_XDESC = 2002
    OPERATION_NORM_FWD_SCALE_DESC = 2005
    OPERATION_NORM_FWD_BIAS_DESC = 2006
    OPERATION_NORM_FWD_EPSILON_DESC = 2007
    OPERATION_NORM_FWD_YDESC = 2013
    DEVICEPROP_HANDLE = 2701
    DEVICEPROP_JSON_REPRESENTATION = 2702
    OPERATION_SDPA_FWD_QDESC = 2800
    OPERATION_SDPA_FWD_KDESC = 2801
    OPERATION_SDPA_FWD_VDESC = 2802
    OPERATION_SDPA_FWD_ODESC = 2803
    OPERATION_SDPA_FWD_SCALEDESC = 2805
    OPERATION_SOFTMAX_XDESC = 3100
    OPERATION_SOFTMAX_YDESC = 3101


class Data(CudnnEnum):
    """Types of elements (``cudnnDataType_t``)."""

    FLOAT = 0
    HALF = 2
    BFLOAT16 = 9


class Heuristic(CudnnEnum):
    """How the heuristic looks for engines (``cudnnBackendHeurMode_t``)."""

    B = 1
    FALLBACK = 2
    A = 3


class Note(CudnnEnum):
    """What the numbers of an engine are like (``cudnnBackendNumericalNote_t``)."""

    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    FFT = 3
    NONDETERMINISTIC = 4
    WINOGRAD = 5
    WINOGRAD_TILE_4x4 = 6
    WINOGRAD_TILE_6x6 = 7
    WINOGRAD_TILE_13x13 = 8


class Function(CudnnEnum):
    """Functions of elements (``cudnnPointwiseMode_t``)."""

    ADD = 0
    MUL = 1
    MIN = 2
    MAX = 3
    SQRT = 4
    DIV = 6
    SUB = 9
    ABS = 10
    EXP = 13
    LOG = 15
    RSQRT = 17
    ERF = 20
    IDENTITY = 21
    RELU_FWD = 100
    TANH_FWD = 101
    SIGMOID_FWD = 102
    ELU_FWD = 103
    GELU_FWD = 104
    SOFTPLUS_FWD = 105
    SWISH_FWD = 106
    GELU_APPROX_TANH_FWD = 107


class Resampling(CudnnEnum):
    """What windows are reduced to (``cudnnResampleMode_t``)."""

    AVGPOOL_INCLUDE_PADDING = 2
    MAXPOOL = 3
    AVGPOOL_EXCLUDE_PADDING = 4


class Reduction(CudnnEnum):
    """What axes are reduced to (``cudnnReduceTensorOp_t``)."""

    ADD = 0
    MAX = 3


class Padding(CudnnEnum):
    """What is around the data of windows (``cudnnPaddingMode_t``)."""

    ZERO_PAD = 0
    NEG_INF_PAD = 1


class Norm(CudnnEnum):
    """What rows are normalised by (``cudnnBackendNormMode_t``)."""

    LAYER_NORM = 0
    RMS_NORM = 4


class Phase(CudnnEnum):
    """Whether statistics are kept for training (``cudnnBackendNormFwdPhase_t``)."""

    INFERENCE = 0


class ConvolutionMode(CudnnEnum):
    """Whether the filter is turned around (``cudnnConvolutionMode_t``)."""

    CROSS_CORRELATION = 1


class NanPropagation(CudnnEnum):
    """Whether NaN is passed on (``cudnnNanPropagation_t``)."""

    PROPAGATE_NAN = 1
