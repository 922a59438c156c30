"""What vLLM's kernels of attention take, as `validate_configuration` of each says, without a GPU.

Usage: vllm_kernels.py FOLDER_OF_VLLM (the package, unpacked). Only its code of attention is run; all that this imports from elsewhere is
replaced by something that does nothing. Each line is a kernel, a GPU (`cuda:90`, `rocm:942`), what is asked (`keys`, `sinks`, `latents`,
`sparse`), elements of a head, the dtype of the model, tokens of a block (0 where nobody states them) and the ranks that divide tokens;
behind them the words of `--kv-cache-dtype` that it takes then. What takes none has no line.
"""

import abc
import enum
import importlib
import importlib.abc
import importlib.machinery
import sys
import types

FOLDER = sys.argv[1]
# What is run of vLLM, and what is a package of it.
OWN = (
    "vllm.v1.attention.backend vllm.v1.attention.backends.registry vllm.platforms.interface vllm.v1.attention.backends.fa_utils "
    "vllm.vllm_flash_attn.flash_attn_interface vllm.utils.flashinfer vllm.v1.attention.ops.flashmla"
).split()
PACKAGES = "v1 v1.attention v1.attention.backends v1.attention.backends.mla v1.attention.ops platforms utils vllm_flash_attn".split()
CUDA = (
    "FLASH_ATTN FLASHINFER TRITON_ATTN FLEX_ATTENTION TURBOQUANT HPC_ATTN FLASH_ATTN_MLA FLASHMLA FLASHINFER_MLA CUTLASS_MLA "
    "TOKENSPEED_MLA TRITON_MLA FLASHINFER_MLA_SPARSE FLASHMLA_SPARSE FLASH_ATTN_MLA_SPARSE FLASHINFER_MLA_SPARSE_SM90 "
    "FLASHINFER_MLA_SPARSE_SM120"
).split()
ROCM = (
    "ROCM_ATTN ROCM_AITER_FA ROCM_AITER_UNIFIED_ATTN TRITON_ATTN TURBOQUANT ROCM_AITER_MLA TRITON_MLA ROCM_AITER_TRITON_MLA "
    "ROCM_AITER_MLA_SPARSE"
).split()
WORDS = "auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_ds_mla nvfp4 int8_per_token_head turboquant_4bit_nc".split()
GPUS = [("cuda", gpu) for gpu in (75, 80, 90, 100, 120)] + [("rocm", 942)]


class Nothing(abc.ABCMeta):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent

    def __getitem__(cls, _):
        return cls

    def __or__(cls, _):
        return cls

    __ror__ = __or__

    def __call__(cls, *given, **named):
        return given[0] if len(given) == 1 and callable(given[0]) and not named else super().__call__()


class Absent(metaclass=Nothing):
    """Stands for whatever is not run: a class to inherit from, a decorator, a function."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *given, **_):
        return given[0] if len(given) == 1 and callable(given[0]) else Absent()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent

    def __mul__(self, _):
        return self

    __rmul__ = __mul__


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        return Absent


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        is_own = name in OWN or name.startswith("vllm.v1.attention.backends.")
        if is_own or name.split(".")[0] in sys.stdlib_module_names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return module(spec.name)

    def exec_module(self, module):
        pass


def module(name, folder=None, **has):
    made = Module(name)
    made.__path__ = [folder] if folder else []
    made.__dict__.update(has)
    sys.modules[name] = made
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], own, made)
    return made


class Platform:
    """The GPU that is asked about."""

    name, number = GPUS[0]

    def get_device_capability(self):
        major, minor = (9, self.number // 10 % 10) if self.name == "rocm" else divmod(self.number, 10)
        return DeviceCapability(major, minor)

    def is_cuda(self):
        return self.name == "cuda"

    def is_rocm(self):
        return self.name == "rocm"

    def is_cuda_alike(self):
        return True

    def is_device_capability(self, number):
        return self.is_cuda() and self.number == number

    def is_device_capability_family(self, number):
        return self.is_cuda() and self.number // 10 == number // 10

    def has_device_capability(self, number):
        return self.get_device_capability().to_int() >= number

    def __getattr__(self, name):
        return lambda *_, **__: False


class Parallel:
    decode_context_parallel_size = 1
    prefill_context_parallel_size = 1


class Text:
    """DeepSeek-V3.2's, as far as kernels look."""

    qk_nope_head_dim, qk_rope_head_dim, kv_lora_rank, v_head_dim, index_topk = 128, 64, 512, 128, 2048


class Model:
    hf_text_config = Text
    is_diffusion = is_mm_prefix_lm = False
    rswa_window = None
    size = 128
    get_num_attention_heads = staticmethod(lambda _: 16)
    get_num_kv_heads = staticmethod(lambda _: 4)
    get_head_size = classmethod(lambda cls: cls.size)


class Cache:
    cache_dtype = "auto"


class Config:
    parallel_config, model_config, cache_config = Parallel, Model, Cache
    attention_config = types.SimpleNamespace(flash_attn_version=None, use_trtllm_attention=None)


def is_quantized(word):
    return word not in ("auto", "float16", "bfloat16", "float32")


sys.meta_path.insert(0, Finder())
module("torch", float16="float16", bfloat16="bfloat16", float32="float32")
module("vllm", FOLDER)
module("vllm.envs", VLLM_BATCH_INVARIANT=False)
for name in PACKAGES:
    module(f"vllm.{name}", f"{FOLDER}/{name.replace('.', '/')}")
module("typing_extensions", TypeVar=__import__("typing").TypeVar)
here = lambda: Config
module("vllm.config", get_current_vllm_config=here, get_current_vllm_config_or_none=here)
module(
    "vllm.v1.kv_cache_interface",
    is_quantized_kv_cache=is_quantized,
    KVQuantMode=enum.Enum("KVQuantMode", "NONE"),
    AttentionSpec=type("AttentionSpec", (), {}),
)
platform = Platform()
sys.modules["vllm.platforms"].current_platform = platform
module(
    "vllm.platforms.rocm",
    get_cdna_version=lambda: {942: 3, 950: 4}.get(platform.number, 0),
    get_rdna_version=lambda: 0,
    on_mi3xx=platform.is_rocm,
)
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionBackend, MLAAttentionImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum

import vllm.utils.flashinfer as flashinfer
import vllm.v1.attention.ops.flashmla as flashmla
import vllm.vllm_flash_attn.flash_attn_interface as flash

# All packages are there, and so is what FlashInfer fetches.
flash.FA2_AVAILABLE = flash.FA3_AVAILABLE = flash.FA4_AVAILABLE = True
flashmla._is_flashmla_available = lambda: (True, None)
flashinfer.has_nvidia_artifactory = flashinfer.has_flashinfer_sm90_nope_mla = lambda: True


class OfLatents(AttentionBackend):
    """`MLACommonBackend`, as far as it is asked."""

    get_supported_head_sizes = classmethod(lambda cls: [320, 512, 576])
    is_mla = classmethod(lambda cls: True)


class Implementation(MLAAttentionImpl):
    def __class_getitem__(cls, _):
        return cls


LAYERS = "vllm.model_executor.layers.attention"
module(f"{LAYERS}.mla_attention", MLACommonBackend=OfLatents, MLACommonImpl=Implementation)
module(f"{LAYERS}.sparse_mla_attention", SparseMLACommonImpl=Implementation)


def taken(kernel, size, dtype, block, dcp, latents, sparse, sinks):
    Parallel.decode_context_parallel_size = 2 if dcp else 1
    Model.size = size
    Text.qk_nope_head_dim, Text.qk_rope_head_dim = (256, 0) if sparse and size == 512 else (128, 64)
    for word in WORDS:
        Cache.cache_dtype = word
        reasons = kernel.validate_configuration(
            head_size=size,
            dtype=dtype,
            kv_cache_dtype=word,
            block_size=block or None,
            use_mla=latents,
            has_sink=sinks,
            use_sparse=sparse,
            use_mm_prefix=False,
            use_per_head_quant_scales=False,
            device_capability=platform.get_device_capability(),
            attn_type="decoder",
            use_dcp=dcp,
        )
        if not reasons:
            yield word


ASKED = [("keys", (32, 64, 80, 96, 128, 256, 512)), ("sinks", (64,)), ("latents", (576,)), ("sparse", (576, 512))]
HOW = [(dtype, 0, dcp) for dtype in ("bfloat16", "float16", "float32") for dcp in (0, 1)]
HOW += [("bfloat16", block, 0) for block in (1, 24, 16, 64)]
for Platform.name, Platform.number in GPUS:
    for name in CUDA if platform.is_cuda() else ROCM:
        folder, _, kernel = AttentionBackendEnum[name].value.rpartition(".")
        kernel = getattr(importlib.import_module(folder), kernel)
        for asked, sizes in ASKED:
            for size, (dtype, block, dcp) in ((size, how) for size in sizes for how in HOW):
                is_latent = asked in ("latents", "sparse")
                words = taken(kernel, size, dtype, block, bool(dcp), is_latent, asked == "sparse", asked == "sinks")
                if words := " ".join(words):
                    print(name, f"{platform.name}:{platform.number}", asked, size, dtype, block, dcp, words)
