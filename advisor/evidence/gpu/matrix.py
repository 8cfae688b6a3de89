"""Which kernels are matrix work, and which of that runs on Tensor Cores or AMD's matrix cores, by name.

Matrix work is gemm, convolution and attention; a library writes the instruction class into the kernel's name. Three
answers: ``on``, ``off``, and ``unknown`` where the name does not tell. Patterns are tried in order, the first match
wins, case counts. Matrix-vector kernels and depthwise convolutions are no matrix work here: they are bound by memory,
and no matrix core would speed them up.
"""

from __future__ import annotations

import re
from functools import lru_cache

ON = "on"
OFF = "off"
UNKNOWN = "unknown"
NONE = ""

# kind → what the kernel does; the order matters ("flash" before "gemm": attention kernels name their gemms).
_KINDS: tuple[tuple[str, str], ...] = (
    # Collectives: NCCL ("ncclKernel_", since 2.19 "ncclDevKernel_"), RCCL (the same names), PyTorch's symmetric memory
    # and vLLM's and TensorRT-LLM's own all-reduces; MSCCL++ and DeepEP's names; NVSHMEM.
    (
        "communication",
        r"nccl|rccl|mscclpp|nvshmem|(multimem|one_shot|two_shot|cross_device|symm_mem|quick|lamport)\w*_?"
        r"(all_?reduce|all_?gather|reduce_?scatter)|all_?reduce.*(kernel|Kernel)|oneShotAllReduce|deep_ep::|cross_device_reduce",
    ),
    # Layout changes, reductions and set-up around gemm and convolution: they belong to them but do no matrix work.
    (
        "other",
        r"nchwToNhwc|nhwcToNchw|[sS]plitK_?[rR]educe|reduce_wgrad|ReduceSplitK|compute\w*Offsets|scalePackedTensor|"
        r"im2col|Im2Col|col2im|Col2Im|generateWinogradTiles|winograd\w*(Transform|transform|Data|Filter|Output|Delta)|"
        r"_PostGSU|postgsu|Cijk_\w+_PostGSU|reshape_and_cache|paged_attention\w*_reduce|fmhaReduction|"
        r"flash_bwd_(dot_do_o|convert)|flash_fwd_splitkv_combine|flash_attention_backward_dot|_attn_bwd_preprocess|"
        r"bwd_preprocess|FlashAttnFwdCombine|FlashAttnBwd(Pre|Post)|moe::dev::(routing|finalize|activation)|"
        r"quantize|_combined_routing|_finalize_matmul|convert_|gemv|GemvKernel|gemvx|gevm|dot_kernel|"
        r"depthwise|Depthwise|dgrad2d_c1_k1|conv2d_c1_k1|grouped_direct_kernel|wgrad2d_grouped|dgrad2d_grouped|conv2d_grouped",
    ),
    (
        "attention",
        r"flash_?(fwd|bwd|attn|attention)|[Ff]lash[AF]ttn|flash::|FlashAttn|fmha|Fmha|FMHA|sdpa|mha_(fwd|bwd|varlen)|"
        r"attn_(fwd|bwd|kernel)|_attn_fwd|_attn_bwd|paged_attention|unified_attention|flex_attention|mla_|"
        r"AttentionKernel|attention_kernel|BatchPrefill|BatchDecode|SinglePrefill|_fwd_grouped_kernel_stage1",
    ),
    (
        "conv",
        r"(?i:fprop|dgrad|wgrad|implicit_gemm|implicit_convolve|explicit_convolve|precomputed_convolve|scudnn|"
        r"s884cudnn|s1688cudnn|s16816cudnn|cudnn_\w*hmma|convolve_\w*gemm|winograd|igemm_(fwd|bwd|wrw)|"
        r"miopenSp3AsmConv|MIOpenConv|naive_conv|ConvAsm|asmconv|triton_tem_fused_\w*convolution|"
        r"_conv\d?d?_|conv\d?d_(fwd|bwd|kernel)|conv2d_|grouped_conv_(fwd|bwd)|DeviceGroupedConv)",
    ),
    (
        "gemm",
        r"(?i:(?<!fb)gemm|nvjet_|Cijk_|matmul|triton_(tem|mm)|^bmm_|_mm_kernel|batched_mm|fused_moe_kernel|_moe_gemm|"
        r"cutlass::Kernel|cutlass::device_kernel|cutlass_\d+_|xmma_|MainloopSm(90|100)|matmul_ogs)",
    ),
)

# Instruction class of matrix work.
_CORES: tuple[tuple[str, str], ...] = (
    # --- NVIDIA: fp32 and fp64 on the ordinary (SIMT) units, whatever the kernel is called.
    (OFF, r"(?i:simt)"),  # CUTLASS OpClassSimt: cutlass_80_simt_sgemm_…
    # xmma names list the types of A, B, accumulator…: "f32f32_f32f32_f32" is plain fp32; "tf32f32" is TF32.
    (OFF, r"xmma_\w*?(?<![ta-z])f32f32_f32f32"),
    (OFF, r"fmha_cutlass[FB]_f32_\w*sm(50|70|75)|fmha_cutlass[FB]_f16_\w*sm50"),  # before sm80
    # --- NVIDIA: Tensor Cores.
    (ON, r"nvjet_"),  # cuBLAS ≥ 12.? on Hopper and Blackwell: JIT-ed wgmma / tcgen05 kernels
    (ON, r"(?i:tensorop|wgmma|gmma|umma|tcgen05|utcmma)"),  # CUTLASS OpClassTensorOp; Hopper; Blackwell
    (ON, r"tensor\d+x\d+x\d+"),  # xmma: the tile of the mma instruction
    (ON, r"_(hmma|imma|dmma|qmma|bmma)_|(?i:hmma\d)"),
    # The mma shape after the letter of the accumulator: h884, s884, s1688, s16816, i8816, d884 …
    (
        ON,
        r"(?<![0-9])[hsdi](884|1688|16816|161616|16832|168128|168256|16864|8816|8832)(gemm|cudnn|fprop|dgrad|wgrad|_|b)",
    ),
    (ON, r"xmma_\w*?(f16f16|bf16bf16|tf32f32|tf32tf32|e4m3|e5m2|i8i8|f8f8)"),
    (ON, r"warpgroupsize\d"),  # xmma for Hopper: warp-group mma
    (ON, r"MainloopSm(90|100|120)|Sm(90|100)TmaGmma|sm(90|100|120)_(mixed|fp8|blockscaled)"),
    (ON, r"_sm100f|sm100f\b|Sm100\w*Kernel|sm100_|_sm90_|Sm90"),  # TensorRT-LLM and FlashInfer cubins
    (ON, r"deep_gemm|fp8_gemm_kernel|deep_gemm::|marlin|Marlin|machete"),
    (ON, r"flash_(fwd|bwd)|flash::|FlashAttnFwd|FlashAttnBwd|cudnn\w*sdpa|sdpa\w*flash|fmha_v2"),  # fp16/bf16 only
    (ON, r"fmha_cutlass[FB]_(f16|bf16)_|fmha_cutlass[FB]_f32_\w*sm(80|90)"),  # f32 on sm80: OpMultiplyAddFastF32
    (ON, r"triton_(tem|mm)(_|$)"),  # Inductor's matmul templates: tl.dot
    # --- NVIDIA: gemm and convolution without Tensor Cores.
    (OFF, r"(sm\d\d_|maxwell_|pascal_|volta_|turing_|ampere_|hopper_|_|\b)[sdczh]?(sgemm|dgemm|cgemm|zgemm|hgemm)"),
    (OFF, r"scudnn|(implicit|explicit|precomputed)_convolve_(s|d|h|c)gemm"),
    (OFF, r"convolve_common_engine_float|(dgrad|wgrad)\w*_engine<(float|double)|wgrad_alg\d\w*<(float|double)"),
    (OFF, r"gemmSN|gemmk1|gemm_kernel1x1|sgemm_largek|gemm_nn_naive|naive_conv"),
    # --- AMD.
    (ON, r"Cijk_\w*_MI\d+x\d+|(?i:mfma)|_xdl|Xdl|XDL|xdlops|(?i:wmma)"),  # Tensile's MatrixInstruction; CK
    (OFF, r"Cijk_\w*(_MAC|_FMA|_VALU|_DOT)|Cijk_\w*_TT\d+_\d+"),  # Tensile without a MatrixInstruction: thread tiles
    (ON, r"igemm_\w*gtcx|igemm_\w*xdlops"),  # MIOpen: "gtcx" is XDLOPS
    (OFF, r"igemm_\w*gtc_|miopenSp3AsmConv|ConvAsm|MIOpenConv|asmconv"),  # MIOpen's direct and Winograd kernels: VALU
    (ON, r"ck_tile\w*(Fmha|fmha|Gemm|gemm)|ck_tile::\w*(Fmha|Gemm)|_ZN7ck_tile\w*(Fmha|Gemm)|BlockFmhaPipeline"),
    (ON, r"aiter\w*(fmha|gemm|mla_|moe_)|fmha_(fwd|bwd)_hd\d+|(bf16|f4|fp8)gemm_|flatmm"),  # AITER's assembly: MFMA
    (OFF, r"_dl_|DeviceGemmDl|GridwiseGemmDl"),  # composable kernel's dot-product path
)

# Formats of matrix work by name: 16 bits and fewer; TF32 (float32 in memory, Tensor Cores); 64 bits and complex.
_NARROW = re.compile(
    r"(?i:(?<![ft])f16|fp16|bf16|bfloat16|half|e4m3|e5m2|fp8|f8f8|i8i8|int8|mxfp4|e2m1|hgemm|h884|h1688|h16816|flash|"
    r"nvjet|_BBS_|_HHS_|Cijk_\w+_(B|H)B?_)"
)
_TF32 = re.compile(r"tf32|TF32|(?<![a-z0-9])s1688(gemm|fprop|dgrad|wgrad|cudnn)|nvjet_(sm\d+_)?ss\w_")
# Tensile's letter of the types behind the layouts of A and B: S, SB, S_B are float32, on MFMA instructions too.
# PyTorch's memory-efficient attention, forward and backward, names its type (aten/src/ATen/native/transformers/cuda/
# mem_eff_attention): of float32 it makes each product of three in TF32 from sm80 on.
_SINGLE = re.compile(r"Cijk_[A-Za-z]+_[A-Za-z]+_S_?B?_|fmha_cutlass[FB]_f32_")
_WIDE = re.compile(r"(?i:dgemm|zgemm|cgemm|d884|dmma|<double|, double|f64f64|_DB_|_ZB_|_CB_)")

# torch.optim's kernels over many tensors at once, fused or "foreach", and Apex's.
_OPTIMIZER = re.compile(r"multi_tensor_apply|FusedAdam|fused_adam", re.IGNORECASE)

_KIND_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)
_CORE_PATTERNS = tuple((answer, re.compile(pattern)) for answer, pattern in _CORES)
MATRIX_KINDS = frozenset(("gemm", "conv", "attention"))


@lru_cache(maxsize=65536)
def kind_of(name: str) -> str:
    """``gemm | conv | attention | communication | other`` by a kernel's name."""
    for kind, pattern in _KIND_PATTERNS:
        if pattern.search(name):
            return kind
    return "other"


@lru_cache(maxsize=65536)
def cores_of(name: str) -> str:
    """``on | off | unknown`` for matrix work, "" for every other kernel."""
    if kind_of(name) not in MATRIX_KINDS:
        return NONE
    for answer, pattern in _CORE_PATTERNS:
        if pattern.search(name):
            return answer
    return UNKNOWN


@lru_cache(maxsize=65536)
def format_of(name: str) -> str:
    """``narrow | tf32 | float32 | wide`` for matrix work: 16 bits and fewer, TF32, 32 bits, 64 bits or complex; "".

    Names on Tensor Cores that do not tell are taken for narrow, those off them for float32; AMD's matrix cores multiply
    float32 itself. cuBLAS's "nvjet" has a letter for each type: "tst" is bfloat16, "hsh" float16, "sss" float32.
    """
    cores = cores_of(name)
    if cores == NONE:
        return ""
    if _WIDE.search(name):
        return "wide"
    if cores != OFF and _TF32.search(name):
        return "narrow" if re.search(r"(?<!t)f16|bf16|fp16", name) else "tf32"
    if _SINGLE.search(name):
        return "float32"
    if _NARROW.search(name) or cores != OFF:
        return "narrow"
    return "float32"


def is_optimizer(name: str) -> bool:
    """Whether a kernel is an optimizer's (or clips or zeroes gradients, as those do), and no part of the model."""
    return _OPTIMIZER.search(name) is not None


# Input and weight of a convolution, as the trace writes them: [[N,C,H,W],[K,C/groups,h,w],…
_LISTS = re.compile(r"\[([\d, ]+)\]")
_FEW_CHANNELS = 32
_CONVOLUTION = re.compile(r"\[\[\d+,\s*(\d+),\s*\d+,\s*\d+\],\s*\[\d+,\s*(\d+),\s*\d+,\s*\d+\]")


def is_narrow(shapes: str) -> bool:
    """Whether these shapes of an operator's inputs are a convolution's of few channels, or along one dimension only.

    Few: fewer than fill the registers of a processor's widest instructions twice, of the input's or of the output's.
    """
    lists = [[int(each) for each in found.split(",") if each.strip()] for found in _LISTS.findall(shapes)]
    images = [each for each in lists[:3] if len(each) in (3, 4)]
    if len(images) < 2:
        return False
    given, weight = images[0], images[-1]
    return len(given) == 3 or given[2] == 1 or min(weight[:2]) < _FEW_CHANNELS


def is_depthwise(shapes: str) -> bool:
    """Whether these shapes of an operator's inputs are a convolution's with one input channel per group."""
    found = _CONVOLUTION.match(shapes)
    return found is not None and int(found[1]) > 1 and int(found[2]) == 1
