//! vLLM's kernels of attention, in the order in which it asks them.
//!
//! Of latents: read in every release from 0.12.0 to 0.33.0. Of keys and values, and all that is not words, sparseness and GPUs: read in
//! 0.33.0 (`v1/attention/backends`, `platforms/cuda.py`, `platforms/rocm.py`).

use std::ops::{Range, RangeInclusive};

use cacheplan_handlers::DType;

use crate::engines::stored::Stored;
use crate::engines::version::Version;

/// A kernel on some GPUs, and what it takes there; of one that takes other words of other heads there are several.
pub(super) struct Kernel {
    pub(super) name: &'static str,
    pub(super) versions: Range<Version>,
    /// Compute capabilities, times ten.
    pub(super) cuda: Gpus,
    /// AMD's `gfx` numbers.
    pub(super) rocm: Gpus,
    pub(super) asked: Asked,
    /// Whether it reads latents, in place of keys and values.
    pub(super) latents: bool,
    pub(super) sparse: bool,
    pub(super) heads: Heads,
    /// What the model is run in.
    pub(super) dtypes: &'static [DType],
    /// Words of `--kv-cache-dtype`, and how it stores what they say.
    pub(super) words: Words,
    pub(super) sinks: bool,
    pub(super) dcp: Dcp,
    /// What its blocks are multiples of.
    pub(super) block: u64,
}

type Gpus = &'static [RangeInclusive<u32>];
type Words = &'static [(&'static str, Stored)];

/// When vLLM asks a kernel that nobody names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Always,
    Never,
    /// Where `VLLM_ROCM_USE_AITER` is on.
    WithAiter,
    /// Where a rank has more heads of queries than this.
    Above(u64),
}

/// Elements of a head, or of a latent with its rope key.
#[derive(Clone, Copy)]
pub(super) enum Heads {
    Any,
    Least(u64),
    /// Multiples of eight up to this.
    Eights(u64),
    /// The same without one of them.
    EightsBut(u64, u64),
    Of(&'static [u64]),
    /// Those of latents, which older versions do not look at.
    Latents,
}

/// Whether ranks may divide a sequence's tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dcp {
    No,
    Yes,
    /// Only where latents are stored beside their scales: its code ends where they are not.
    Packed,
}

impl Heads {
    pub(super) fn has(self, size: u64, version: Version) -> bool {
        match self {
            Self::Any => true,
            Self::Least(least) => size >= least,
            Self::Eights(most) => size.is_multiple_of(8) && size <= most,
            Self::EightsBut(most, but) => size != but && Self::Eights(most).has(size, version),
            Self::Of(all) => all.contains(&size),
            Self::Latents => version < READ || [320, 512, 576].contains(&size),
        }
    }
}

const EVER: Range<Version> = Version(0, 0, 0)..Version(u32::MAX, 0, 0);

const fn before(version: Version) -> Range<Version> {
    EVER.start..version
}

const fn since(version: Version) -> Range<Version> {
    version..EVER.end
}

/// The version of which all columns were read.
pub(super) const READ: Version = Version(0, 33, 0);
/// Read in 0.18.0, and not in 0.17.1: Triton's kernel takes 8 bits, and sparse ones the words themselves; before, DeepSeek-V3.2's were
/// rewritten.
pub(super) const MANY_WORDS: Version = Version(0, 18, 0);
/// Read in 0.30.0, and not in 0.29.0.
const WITHOUT_ROPE: Version = Version(0, 29, 1);
/// Read in 0.24.0, and not in 0.23.0: before, no sparse kernel ran on consumer Blackwell.
pub(in super::super) const SPARSE_ON_SM120: Version = Version(0, 24, 0);

const ALL: Gpus = &[0..=u32::MAX];
const NONE: Gpus = &[];
const AMPERE: Gpus = &[80..=89];
const HOPPER: Gpus = &[90..=99];
const BLACKWELL: Gpus = &[100..=109];
const THOR: Gpus = &[110..=119];
const SM120: Gpus = &[120..=129];
/// Where FlashInfer decodes with sinks by a kernel of its own.
const DECODES_SINKS: Gpus = &[90..=90, 120..=121];

const HALVES: &[DType] = &[DType::F16, DType::Bf16];
const FLOATS: &[DType] = &[DType::F16, DType::Bf16, DType::F32];
const BRAIN: &[DType] = &[DType::Bf16];

pub(super) const AUTO: (&str, Stored) = ("auto", Stored::Own);
pub(super) const BF16: (&str, Stored) = ("bfloat16", Stored::Own);
pub(super) const F16: (&str, Stored) = ("float16", Stored::Own);
pub(super) const FP8: (&str, Stored) = ("fp8", Stored::Narrow);
const E4M3: (&str, Stored) = ("fp8_e4m3", Stored::Narrow);
const E5M2: (&str, Stored) = ("fp8_e5m2", Stored::Narrow);
pub(super) const PACKED: (&str, Stored) = ("fp8_ds_mla", Stored::Packed);
const IN_FP4: [(&str, Stored); 2] = [("nvfp4", Stored::Narrow), ("nvfp4_4over6", Stored::Narrow)];

/// What the model is run in.
const PLAIN: Words = &[AUTO, F16, BF16];
const WITH_E4M3: Words = &[AUTO, F16, BF16, FP8, E4M3];
const WITH_E5M2: Words = &[AUTO, F16, BF16, FP8, E4M3, E5M2];

/// AMD's own for latents.
const AITER_MLA: Kernel =
    Kernel { versions: since(READ), asked: Asked::WithAiter, latents: true, dcp: Dcp::Yes, block: 1, ..BY_AMD };

/// Of keys and values, by CUDA.
const KEYS: Kernel = Kernel {
    name: "",
    versions: since(READ),
    cuda: ALL,
    rocm: NONE,
    asked: Asked::Always,
    latents: false,
    sparse: false,
    heads: Heads::Any,
    dtypes: HALVES,
    words: PLAIN,
    sinks: false,
    dcp: Dcp::No,
    block: 16,
};
const FLASH_ATTN: Kernel = Kernel { name: "FLASH_ATTN", heads: Heads::Eights(256), dcp: Dcp::Yes, ..KEYS };
const FLASHINFER: Kernel =
    Kernel { name: "FLASHINFER", heads: Heads::Of(&[64, 128, 256, 512]), words: WITH_E5M2, dcp: Dcp::Yes, ..KEYS };
const BY_AMD: Kernel = Kernel { cuda: NONE, rocm: ALL, words: WITH_E5M2, ..KEYS };
const TRITON_MLA: Kernel = Kernel { name: "TRITON_MLA", rocm: ALL, heads: Heads::Any, ..DENSE };
const DENSE: Kernel =
    Kernel { versions: EVER, latents: true, heads: Heads::Latents, words: WITH_E4M3, dcp: Dcp::Yes, ..KEYS };
const SPARSE: Kernel = Kernel { sparse: true, heads: Heads::Any, block: 64, ..DENSE };
const FLASHMLA_SPARSE: Kernel =
    Kernel { name: "FLASHMLA_SPARSE", versions: since(MANY_WORDS), dtypes: BRAIN, dcp: Dcp::Packed, ..SPARSE };

/// DeepSeek-V3's latent; those of 512 elements have no rope key.
pub(super) const WITH_ROPE: u64 = 576;

pub(super) static KERNELS: &[Kernel] = &[
    Kernel {
        cuda: BLACKWELL,
        words: &[AUTO, F16, BF16, FP8, E4M3, E5M2, IN_FP4[0], IN_FP4[1]],
        sinks: true,
        ..FLASHINFER
    },
    Kernel { cuda: AMPERE, ..FLASH_ATTN },
    Kernel { cuda: HOPPER, heads: Heads::Eights(512), sinks: true, ..FLASH_ATTN },
    Kernel { cuda: HOPPER, words: WITH_E4M3, sinks: true, ..FLASH_ATTN },
    Kernel { cuda: HOPPER, heads: Heads::Of(&[512]), words: WITH_E4M3, sinks: true, block: 64, ..FLASH_ATTN },
    Kernel { cuda: BLACKWELL, heads: Heads::EightsBut(512, 256), sinks: true, ..FLASH_ATTN },
    Kernel { cuda: BLACKWELL, heads: Heads::Of(&[256]), sinks: true, block: 128, ..FLASH_ATTN },
    Kernel { cuda: BLACKWELL, heads: Heads::Eights(128), words: WITH_E4M3, sinks: true, ..FLASH_ATTN },
    Kernel { cuda: THOR, heads: Heads::Eights(512), ..FLASH_ATTN },
    Kernel { cuda: SM120, ..FLASH_ATTN },
    Kernel { cuda: &[80..=89, 91..=99, 110..=119], ..FLASHINFER },
    Kernel { cuda: DECODES_SINKS, sinks: true, ..FLASHINFER },
    Kernel { cuda: &[80..=99, 120..=121], heads: Heads::Of(&[128, 256, 512]), words: &[IN_FP4[0]], ..FLASHINFER },
    Kernel {
        name: "ROCM_ATTN",
        heads: Heads::Of(&[32, 64, 80, 96, 128, 160, 192, 224, 256]),
        dtypes: FLOATS,
        ..BY_AMD
    },
    Kernel { name: "ROCM_AITER_FA", asked: Asked::WithAiter, heads: Heads::Of(&[64, 128, 256]), sinks: true, ..BY_AMD },
    Kernel { name: "ROCM_AITER_UNIFIED_ATTN", heads: Heads::Least(32), sinks: true, ..BY_AMD },
    Kernel {
        name: "TRITON_ATTN",
        rocm: ALL,
        heads: Heads::Least(32),
        dtypes: FLOATS,
        words: &[
            AUTO,
            F16,
            BF16,
            FP8,
            E4M3,
            E5M2,
            ("int4_per_token_head", Stored::Narrow),
            ("int8_per_token_head", Stored::Narrow),
            ("fp8_per_token_head", Stored::Narrow),
        ],
        sinks: true,
        ..KEYS
    },
    Kernel { name: "FLEX_ATTENTION", dtypes: FLOATS, ..KEYS },
    Kernel {
        name: "TURBOQUANT",
        rocm: ALL,
        words: &[
            ("turboquant_k8v4", Stored::Narrow),
            ("turboquant_4bit_nc", Stored::Narrow),
            ("turboquant_k3v4_nc", Stored::Narrow),
            ("turboquant_3bit_nc", Stored::Narrow),
        ],
        ..KEYS
    },
    Kernel {
        name: "ROCM_OCTAVE",
        rocm: &[940..=942],
        heads: Heads::Of(&[256]),
        words: &[
            ("octave_k3v4", Stored::Narrow),
            ("octave_k3v3", Stored::Narrow),
            ("octave_k3v3_compact", Stored::Narrow),
        ],
        ..BY_AMD
    },
    Kernel { name: "ULTRAQUANT", dtypes: BRAIN, words: &[("ultraquant_4bit", Stored::Narrow)], ..BY_AMD },
    Kernel {
        name: "B12X",
        cuda: &[120..=121],
        asked: Asked::Never,
        heads: Heads::Of(&[64, 128, 192, 256]),
        dtypes: BRAIN,
        words: &[AUTO, BF16, FP8, E4M3],
        sinks: true,
        block: 64,
        ..KEYS
    },
    Kernel {
        name: "HPC_ATTN",
        cuda: &[90..=90],
        asked: Asked::Never,
        heads: Heads::Of(&[128]),
        words: &[AUTO, BF16, E4M3],
        block: 64,
        ..KEYS
    },
    Kernel { name: "FLASHINFER_MLA", cuda: BLACKWELL, block: 32, ..DENSE },
    Kernel {
        name: "TOKENSPEED_MLA",
        versions: since(READ),
        cuda: BLACKWELL,
        asked: Asked::Never,
        words: &[FP8, E4M3],
        block: 32,
        ..DENSE
    },
    Kernel { name: "CUTLASS_MLA", versions: since(READ), cuda: BLACKWELL, block: 128, ..DENSE },
    Kernel { name: "FLASH_ATTN_MLA", cuda: HOPPER, words: PLAIN, ..DENSE },
    Kernel { name: "FLASHMLA", versions: before(READ), cuda: &[90..=109], block: 64, ..DENSE },
    Kernel { name: "FLASHMLA", versions: since(READ), cuda: HOPPER, block: 64, ..DENSE },
    Kernel { name: "ROCM_AITER_MLA", ..AITER_MLA },
    Kernel { versions: before(MANY_WORDS), words: PLAIN, ..TRITON_MLA },
    Kernel { versions: since(MANY_WORDS), ..TRITON_MLA },
    Kernel { name: "ROCM_AITER_TRITON_MLA", ..AITER_MLA },
    Kernel {
        name: "FLASHMLA_SPARSE",
        versions: before(MANY_WORDS),
        cuda: &[90..=109],
        words: &[AUTO, BF16, PACKED],
        ..SPARSE
    },
    // Where its padding costs nothing it is asked first.
    Kernel {
        versions: since(READ),
        cuda: BLACKWELL,
        asked: Asked::Above(16),
        heads: Heads::Of(&[WITH_ROPE]),
        words: &[AUTO, BF16],
        ..FLASHMLA_SPARSE
    },
    Kernel { name: "FLASHINFER_MLA_SPARSE", versions: since(MANY_WORDS), cuda: BLACKWELL, block: 32, ..SPARSE },
    Kernel {
        name: "FLASH_ATTN_MLA_SPARSE",
        versions: since(Version(0, 25, 0)),
        cuda: HOPPER,
        words: PLAIN,
        dcp: Dcp::No,
        ..SPARSE
    },
    Kernel {
        cuda: &[90..=109],
        heads: Heads::Of(&[WITH_ROPE]),
        words: &[AUTO, BF16, ("fp8", Stored::Packed), PACKED],
        ..FLASHMLA_SPARSE
    },
    Kernel {
        name: "FLASHINFER_MLA_SPARSE_SM90",
        versions: since(WITHOUT_ROPE),
        cuda: HOPPER,
        dtypes: BRAIN,
        words: &[AUTO, BF16, FP8, E4M3],
        dcp: Dcp::No,
        ..SPARSE
    },
    // A latent without a rope key has an empty place for it there.
    Kernel {
        versions: since(WITHOUT_ROPE),
        cuda: HOPPER,
        heads: Heads::Of(&[512]),
        words: &[AUTO, BF16, PACKED],
        ..FLASHMLA_SPARSE
    },
    Kernel {
        name: "FLASHINFER_MLA_SPARSE_SM120",
        versions: since(SPARSE_ON_SM120),
        cuda: SM120,
        dtypes: BRAIN,
        words: &[("auto", Stored::Packed), ("fp8", Stored::Packed), ("fp8_e4m3", Stored::Packed), PACKED],
        dcp: Dcp::No,
        ..SPARSE
    },
    Kernel {
        name: "ROCM_AITER_MLA_SPARSE",
        latents: true,
        sparse: true,
        words: WITH_E4M3,
        sinks: true,
        block: 1,
        ..BY_AMD
    },
];

/// Names that it knows and has no kernel of, and how it ends there.
pub(super) const WITHOUT_CODE: [(&str, &str); 2] = [
    (
        "TORCH_SDPA",
        "Backend TORCH_SDPA must be registered before use. Use register_backend(Backend.TORCH_SDPA, 'your.module.YourClass')",
    ),
    (
        "NO_ATTENTION",
        "Selected backend AttentionBackendEnum.NO_ATTENTION is not valid for this configuration. Reason: [ModuleNotFoundError: No module named 'vllm.v1.attention.backends.no_attention']",
    ),
];

/// Words that kernels did not name before: read in 0.15.1 and not in 0.14.0, read in 0.18.0 and not in 0.17.1.
pub(super) const NAMED_SINCE: [(&str, Version); 2] = [("bfloat16", Version(0, 15, 0)), ("float16", MANY_WORDS)];
