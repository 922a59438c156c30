//! Words that vLLM's configuration knows, as 0.33.0 lists them unless said.

/// `_TOOL_PARSERS_TO_REGISTER`.
pub(super) const TOOLS: &str = "dots deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 cohere_command3 cohere_command4 ernie45 glm45 \
    glm47 ling3 granite-20b-fc granite granite4 hermes hf beam poolside_v1 hunyuan_a13b hy_v3 hy_v4 internlm jamba lfm2 \
    kimi_k2 kimi_k3 k2_horizon llama3_json llama4_json llama4_pythonic longcat mimo minimax_m2 minimax_m3 minicpm5 mistral \
    olmo3 plamo3 muse muse_glimmer musespark1x openai phi4_mini_json pythonic qwen3_coder qwen3_json qwen3_xml seed_oss \
    step3 step3p5 step5 inkling xlam gigachat3 functiongemma gemma4 apertus";

/// `_REASONING_PARSERS_TO_REGISTER`.
pub(super) const REASONING: &str = "deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 poolside_v1 cohere_command3 cohere_command4 ernie45 gemma4 glm45 \
    glm47 ling3 openai_gptoss granite granite_thinking_parser hf beam holo2 hunyuan_a13b hy_v3 hy_v4 kimi_k2 kimi_k3 \
    k2_horizon mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral nemotron_v3 olmo3 plamo3 muse \
    muse_glimmer musespark1x qwen3 seed_oss step3 step3p5 step5 inkling";

/// `_LOAD_FORMAT_TO_MODEL_LOADER`.
pub(super) const FORMATS: &str = "auto hf dummy fastsafetensors instanttensor ipc_cache mistral modelexpress npcache pt runai_streamer \
    runai_streamer_sharded safetensors sharded_state tensorizer";

/// `QuantizationMethods`, and a name that commands have for files of one of them.
pub(super) const QUANTIZATIONS: &str = "awq auto_awq fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed auto_gptq gptq gptq_marlin \
    awq_marlin humming compressed-tensors experts_int8 quark moe_wna16 torchao inc mxfp4 gpt_oss_mxfp4 deepseek_v4_fp8 \
    online fp8_per_tensor fp8_per_block fp8_per_channel int8_per_channel_weight_only nvfp4_per_token mxfp8 auto_round";

/// `_Backend` of 0.11.0.
pub(super) const BACKENDS_OF_0_11: &str = "FLASH_ATTN TRITON_ATTN XFORMERS ROCM_FLASH ROCM_AITER_MLA ROCM_AITER_FA TORCH_SDPA FLASHINFER FLASHINFER_MLA \
    TRITON_MLA CUTLASS_MLA FLASHMLA FLASH_ATTN_MLA PALLAS IPEX DUAL_CHUNK_FLASH_ATTN DIFFERENTIAL_FLASH_ATTN NO_ATTENTION \
    FLEX_ATTENTION TREE_ATTN ROCM_ATTN";

/// Classes of its registry that take no adapters (`SupportsLoRA`).
pub(super) const WITHOUT_ADAPTERS: &str = "AriaForConditionalGeneration BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration \
    BeamForCausalLM BeeForConditionalGeneration BloomForCausalLM Cohere2MoeForCausalLM Cohere2VisionForConditionalGeneration \
    CohereAsrForConditionalGeneration Cosmos3EdgeForConditionalGeneration DbrxForCausalLM DeepseekV41ForCausalLM DeepseekVLV2ForCausalLM \
    DiffusionGemmaForBlockDiffusion DomynEdgeForCausalLM DoryForCausalLM Dots3NoteForCausalLM FalconForCausalLM FalconMambaForCausalLM \
    FireRedASR2ForConditionalGeneration FlintForCausalLM FunASRForConditionalGeneration FunAudioChatForConditionalGeneration \
    GPT2LMHeadModel GPTJForCausalLM Gemma3nForCausalLM Gemma3nForConditionalGeneration Glm5NextForCausalLM HCXVisionV2ForCausalLM \
    HfMoondream HrmTextForCausalLM IQuestLoopCoderForCausalLM KimiK25ForConditionalGeneration KimiK3ForConditionalGeneration \
    KimiLinearForCausalLM KimiVLForConditionalGeneration LlavaOnevision2ForConditionalGeneration LlavaOnevisionForConditionalGeneration \
    Mamba2ForCausalLM MambaForCausalLM MiDashengLMModel MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiMoV2OmniForCausalLM \
    MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration Moondream3ForCausalLM MoonshotKimiaForCausalLM \
    MossTranscribeDiarizeForConditionalGeneration NemotronParseForConditionalGeneration OpenVLAForActionPrediction OrionForCausalLM Ovis \
    Ovis2_5 Ovis2_6ForCausalLM Ovis2_6_MoeForCausalLM PaddleOCRVLForConditionalGeneration Phi3VForCausalLM Phi4ForCausalLMV \
    Qwen2AudioForConditionalGeneration RForConditionalGeneration RadioMBartPrefixForCausalLM SkyworkR1VChatModel StableLmForCausalLM \
    Step1ForCausalLM Step3TextForCausalLM Step3VLForConditionalGeneration Step3p5ForCausalLM Step3p7ForConditionalGeneration \
    StepVLForConditionalGeneration Zamba2ForCausalLM";
