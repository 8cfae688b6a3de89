"""Kernel names and the instruction classes that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.evidence import Evidence
from advisor.evidence.gpu.matrix import cores_of, format_of, kind_of
from advisor.trace import read_trace


@pytest.mark.parametrize(
    "name",
    [
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
        "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_kernel",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1"
        "_g1_tensor16x8x8_execute_kernel_cudnn_infer",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize96x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64>(Params)",
        "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_1x1x1_0_tnn_align8",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<MainloopSm90TmaGmma>>(Params)",
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "volta_h884gemm_64x64_ldg8_nn",
        "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc_tn_v1",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x128x128_4x1x1_kernel0_0",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_dynBatch_sm100f",
        "triton_tem_fused_addmm_relu_3",
        "triton_mm",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1_AFC1",
        "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3<...>>(Argument)",
        "void ck_tile::kentry<ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync<...>>>(Kargs)",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>(__hip_bfloat16 const*)",
        "igemm_fwd_gtcx35_nhwc_fp16_bx0_ex1_bt256x128x32",
    ],
)
def test_matrix_cores_are_recognized(name: str) -> None:
    assert cores_of(name) == "on"


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_nn",
        "volta_sgemm_64x64_nt",
        "volta_scudnn_128x128_stridedB_splitK_small_nn_v1",
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_kernel__5x_cublas",
        "sm86_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckcrs_nchw_tilesize128x128x8_stage3_ffma_kernel_cudnn",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
        "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm75(Params)",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1",
    ],
)
def test_matrix_work_off_the_matrix_cores(name: str) -> None:
    assert cores_of(name) == "off"


@pytest.mark.parametrize("name", ["attn_fwd", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "fused_moe_kernel"])
def test_handwritten_matrix_work_is_unknown(name: str) -> None:
    assert cores_of(name) == "unknown"


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
        "triton_poi_fused_add_cos_sin_0",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)",
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, true>(params)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(params)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(params)",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(params)",
    ],
)
def test_other_kernels_are_no_matrix_work(name: str) -> None:
    assert cores_of(name) == ""


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(params)",
    ],
)
def test_collectives_are_communication(name: str) -> None:
    assert kind_of(name) == "communication"
    assert cores_of(name) == ""


@pytest.mark.parametrize(
    ("file", "low", "high"),
    [
        ("v100-resnet50-workers0.pt.trace.json.gz", 0.0, 0.0),  # fp32 on a V100
        ("b200-eager-inference.json.gz", 1.0, 1.0),  # other tools say 0 %
        ("h100-vit-inference.json.gz", 1.0, 1.0),
        ("a100-ddp-training.json.gz", 0.96, 0.97),  # TF32 but for one convolution
        ("mi300x-qwen-inference.json.gz", 0.75, 1.0),  # attention in Triton: unknown
    ],
)
def test_share_is_a_range(file: str, low: float, high: float, shared_traces: Path) -> None:
    matrix = Evidence.from_trace(read_trace(shared_traces / file)).matrix
    assert matrix.share_low == pytest.approx(low, abs=0.01)
    assert matrix.share_high == pytest.approx(high, abs=0.01)


@pytest.mark.parametrize(
    ("name", "number_format"),
    [
        ("ampere_sgemm_128x64_tn", "float32"),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "float32"),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>", "float32"),
        ("ampere_dgemm_64x64_nn", "wide"),
        ("void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1>", "wide"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", "narrow"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "narrow"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1", "narrow"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>", "narrow"),
        ("volta_hgemm_128x64_nn", "narrow"),
        # PyTorch's memory-efficient attention, as profilers of runs in float32 and in 16 bits have named it
        (
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, "
            "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)",
            "float32",
        ),
        ("fmha_cutlassB_f32_aligned_64x64_k64_dropout_sm80", "float32"),
        (
            "_Z41fmha_cutlassB_f32_aligned_64x64_k128_sm80N22PyTorchMemEffAttention23AttentionBackwardKernelI"
            "N7cutlass4arch4Sm80EfLb1ELb0ELb0ELi64ELi64ELi128ELb0EE6ParamsE",
            "float32",
        ),
        ("fmha_cutlassF_f32_aligned_32x128_gmem_sm80", "float32"),
        ("fmha_cutlassF_f32_notaligned_64x64_rf_sm75", "float32"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "narrow"),
        ("fmha_cutlassB_f16_aligned_128x128_k64_dropout_sm80", "narrow"),
        ("fmha_cutlassF_f16_notaligned_64x64_rf_sm75", "narrow"),
        ("void at::native::vectorized_elementwise_kernel<4>", ""),
    ],
)
def test_formats_by_name(name: str, number_format: str) -> None:
    assert format_of(name) == number_format
