//! Kernels that read latents: the words of `--kv-cache-dtype` that each takes on which GPU, and how it stores what it is told.
//!
//! The first that takes all is chosen (`_get_backend_priorities`, `validate_configuration`, `supported_kv_cache_dtypes`); where none
//! does, vLLM does not start. Read in every release from 0.12.0 to 0.33.0; older ones do not ask.

use std::ops::Range;

use cacheplan_handlers::{DType, Kind, ResourceHandler};

use super::packed::Family;
use crate::engines::caches::{Packing, packed_bytes};
use crate::engines::situation::Situation;
use crate::engines::stored::{Stored, Telling};
use crate::engines::version::Version;
use crate::error::EngineRefusal;

/// A kernel, and what it takes.
struct Kernel {
    name: &'static str,
    versions: Range<Version>,
    sparse: bool,
    /// Major compute capabilities; empty for all.
    majors: &'static [u32],
    /// Elements of a latent with its rope key; empty for all.
    widths: &'static [u64],
    /// Words, and how it stores what they say.
    words: &'static [(&'static str, Stored)],
    /// What its blocks are multiples of.
    block: u64,
}

const EVER: Range<Version> = Version(0, 0, 0)..Version(u32::MAX, 0, 0);

const fn before(version: Version) -> Range<Version> {
    EVER.start..version
}

const fn since(version: Version) -> Range<Version> {
    version..EVER.end
}

const AUTO: (&str, Stored) = ("auto", Stored::Own);
const BF16: (&str, Stored) = ("bfloat16", Stored::Own);
const F16: (&str, Stored) = ("float16", Stored::Own);
const FP8: (&str, Stored) = ("fp8", Stored::Narrow);
const E4M3: (&str, Stored) = ("fp8_e4m3", Stored::Narrow);
const PACKED: (&str, Stored) = ("fp8_ds_mla", Stored::Packed);

const DENSE: Kernel =
    Kernel { name: "", versions: EVER, sparse: false, majors: &[], widths: &[], words: &[], block: 16 };
const SPARSE: Kernel = Kernel { sparse: true, block: 64, ..DENSE };

/// DeepSeek-V3's latent; those of 512 elements have no rope key.
const WITH_ROPE: u64 = 576;

/// In the order in which they are asked; those that others stand before wherever they run are left out.
static KERNELS: [Kernel; 12] = [
    Kernel { name: "FLASHINFER_MLA", majors: &[10], words: &[AUTO, F16, BF16, FP8, E4M3], block: 32, ..DENSE },
    Kernel { name: "FLASH_ATTN_MLA", majors: &[9], words: &[AUTO, F16, BF16], ..DENSE },
    Kernel { name: "FLASHMLA", majors: &[9, 10], words: &[AUTO, F16, BF16, FP8, E4M3], block: 64, ..DENSE },
    Kernel { name: "TRITON_MLA", versions: before(MANY_WORDS), words: &[AUTO, F16, BF16], ..DENSE },
    Kernel { name: "TRITON_MLA", versions: since(MANY_WORDS), words: &[AUTO, F16, BF16, FP8, E4M3], ..DENSE },
    Kernel {
        name: "FLASHMLA_SPARSE",
        versions: before(MANY_WORDS),
        majors: &[9, 10],
        words: &[AUTO, BF16, PACKED],
        ..SPARSE
    },
    Kernel {
        name: "FLASHINFER_MLA_SPARSE",
        versions: since(MANY_WORDS),
        majors: &[10],
        words: &[AUTO, F16, BF16, FP8, E4M3],
        block: 32,
        ..SPARSE
    },
    Kernel {
        name: "FLASH_ATTN_MLA_SPARSE",
        versions: since(Version(0, 25, 0)),
        majors: &[9],
        words: &[AUTO, F16, BF16],
        ..SPARSE
    },
    Kernel {
        name: "FLASHMLA_SPARSE",
        versions: since(MANY_WORDS),
        majors: &[9, 10],
        widths: &[WITH_ROPE],
        words: &[AUTO, BF16, ("fp8", Stored::Packed), PACKED],
        ..SPARSE
    },
    Kernel {
        name: "FLASHINFER_MLA_SPARSE_SM90",
        versions: since(WITHOUT_ROPE),
        majors: &[9],
        words: &[AUTO, BF16, FP8, E4M3],
        ..SPARSE
    },
    // A latent without a rope key has an empty place for it there.
    Kernel { name: "FLASHMLA_SPARSE", versions: since(WITHOUT_ROPE), majors: &[9], words: &[PACKED], ..SPARSE },
    Kernel {
        name: "FLASHINFER_MLA_SPARSE_SM120",
        versions: since(SPARSE_ON_SM120),
        majors: &[12],
        words: &[("auto", Stored::Packed), ("fp8", Stored::Packed), ("fp8_e4m3", Stored::Packed), PACKED],
        ..SPARSE
    },
];

/// Words that kernels did not name before: read in 0.15.1 and not in 0.14.0, read in 0.18.0 and not in 0.17.1.
const NAMED_SINCE: [(&str, Version); 2] = [("bfloat16", Version(0, 15, 0)), ("float16", MANY_WORDS)];
/// Read in 0.12.0, and not in 0.11.2: kernels are asked.
const ASKS: Version = Version(0, 12, 0);
/// Read in 0.18.0, and not in 0.17.1: Triton's kernel takes 8 bits, and sparse ones the words themselves; before, DeepSeek-V3.2's were
/// rewritten.
const MANY_WORDS: Version = Version(0, 18, 0);
/// Read in 0.30.0, and not in 0.29.0.
const WITHOUT_ROPE: Version = Version(0, 29, 1);
/// Read in 0.24.0, and not in 0.23.0: before, no sparse kernel ran on consumer Blackwell.
pub(super) const SPARSE_ON_SM120: Version = Version(0, 24, 0);

/// Latents, and what is asked about them.
pub(super) struct Latents<'a> {
    pub(super) model: &'a str,
    /// Elements of one, of a model that multiplies none out.
    pub(super) width: u64,
    pub(super) sparse: bool,
    pub(super) version: Version,
    /// Compute capability, times ten.
    pub(super) capability: u32,
}

impl<'a> Latents<'a> {
    /// Those of a model that keeps such caches.
    fn of<'b>(
        handlers: &(impl Iterator<Item = &'b ResourceHandler> + Clone),
        model: &'a str,
        version: Version,
        capability: u32,
    ) -> Option<Self> {
        let latent = handlers.clone().find(|handler| *handler.kind() == Kind::MlaPaged);
        let is_packed = Family::of(model).is_some_and(Family::packs);
        let width = match latent {
            Some(latent) => latent.dim("head_dim").unwrap_or(0),
            None if is_packed => 0,
            None => return None,
        };
        let sparse = handlers.clone().any(|handler| *handler.kind() == Kind::IndexKey);
        Some(Self { model, width, sparse, version, capability })
    }

    /// How they are stored where `--kv-cache-dtype` is `word`, by the kernel of that name or the first that takes it; else what vLLM says.
    /// None of a kernel that is not known.
    pub(super) fn stored(&self, word: &str, backend: Option<&str>) -> Result<Option<Stored>, String> {
        if let Some(family) = Family::of(self.model).filter(|family| family.packs()) {
            return family.stored(word, backend, self.version, self.capability).map(Some);
        }
        if word == "nvfp4" {
            return Err(NVFP4.to_owned());
        }
        let word = match word {
            _ if self.model != "deepseek_v32" || self.version >= MANY_WORDS => word,
            "bfloat16" => AUTO.0,
            _ if word.starts_with("fp8") => PACKED.0,
            _ => word,
        };
        if backend.is_some_and(|named| !KERNELS.iter().any(|kernel| kernel.name == named)) {
            return Ok(None);
        }
        let asked = || KERNELS.iter().filter(|kernel| kernel.versions.contains(&self.version));
        let asked = || asked().filter(|kernel| backend.is_none_or(|named| kernel.name == named));
        let takes = |kernel: &Kernel| self.taken(kernel, word).filter(|_| self.runs(kernel));
        match asked().find_map(takes) {
            Some(stored) => Ok(Some(stored)),
            None if self.version < ASKS => Ok(None),
            None => {
                let reasons: Vec<String> = asked().map(|kernel| self.reason(kernel, word)).collect();
                let (width, sparse) = (self.width, if self.sparse { "True" } else { "False" });
                Err(format!(
                    "No valid attention backend found for cuda with AttentionSelectorConfig(head_size={width}, …, kv_cache_dtype={word}, …, use_mla=True, …, use_sparse={sparse}, …). Reasons: {{{}}}.",
                    reasons.join(", ")
                ))
            }
        }
    }

    /// The kernel for dense latents in the dtype of the model, or in 8 bits.
    pub(super) fn block(&self, narrow: bool) -> Option<u64> {
        let word = if narrow { FP8.0 } else { AUTO.0 };
        let takes = |kernel: &&Kernel| self.runs(kernel) && self.taken(kernel, word).is_some();
        KERNELS.iter().filter(|kernel| kernel.versions.contains(&self.version)).find(takes).map(|kernel| kernel.block)
    }

    /// The word for what a budget states, and for what a checkpoint says where it states nothing.
    fn word(&self, stated: Option<DType>, kept: DType) -> Option<&'static str> {
        match (stated, kept) {
            (Some(DType::F8E4m3), _) | (None, DType::F8E4m3) => Some(FP8.0),
            (Some(DType::F8E5m2), _) => Some("fp8_e5m2"),
            (Some(DType::Nvfp4), _) => Some("nvfp4"),
            // What the model is run in anyway, where that had no word.
            (Some(DType::Bf16 | DType::F16), _) if self.version < MANY_WORDS => Some(AUTO.0),
            (Some(DType::Bf16), _) => Some(BF16.0),
            (Some(DType::F16), _) => Some(F16.0),
            (Some(_), _) => None,
            (None, _) => Some(AUTO.0),
        }
    }

    fn taken(&self, kernel: &Kernel, word: &str) -> Option<Stored> {
        let is_named = !NAMED_SINCE.iter().any(|(named, since)| *named == word && self.version < *since);
        kernel.words.iter().find(|(taken, _)| *taken == word && is_named).map(|(_, stored)| *stored)
    }

    fn runs(&self, kernel: &Kernel) -> bool {
        let has = |all: &[u32], one: u32| all.is_empty() || all.contains(&one);
        let fits = kernel.widths.is_empty() || kernel.widths.contains(&self.width);
        kernel.sparse == self.sparse && has(kernel.majors, self.capability / 10) && fits
    }

    /// Why a kernel does not take a word, as `validate_configuration` says it.
    fn reason(&self, kernel: &Kernel, word: &str) -> String {
        let mut reasons = Vec::new();
        if self.taken(kernel, word).is_none() {
            reasons.push("kv_cache_dtype not supported");
        }
        if kernel.sparse != self.sparse {
            reasons.push(if self.sparse { "sparse not supported" } else { "non-sparse not supported" });
        }
        if !kernel.majors.is_empty() && !kernel.majors.contains(&(self.capability / 10)) {
            reasons.push("compute capability not supported");
        }
        format!("{}: [{}]", kernel.name, reasons.join(", "))
    }
}

const NVFP4: &str = "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a different --kv-cache-dtype (e.g., 'fp8', 'auto', or 'nvfp4_ds_mla' with a sparse MLA backend) for MLA models such as DeepSeek.";

/// Bytes of a latent of 8 bits that is stored beside its scales.
pub(super) fn packed(asked: &Packing<'_>) -> Option<u64> {
    let Packing { model, width, version, capability } = *asked;
    let latents = Latents { model, width, sparse: true, version, capability };
    // A place for a rope key is there where there is none.
    (latents.stored(FP8.0, None) == Ok(Some(Stored::Packed))).then_some(packed_bytes(WITH_ROPE))
}

/// The refusal where no kernel reads what the budget states, or what the model is kept in.
pub(super) fn refuses(situation: &Situation<'_>) -> Option<EngineRefusal> {
    let kept = situation.caches.attention.iter().find(|cache| !cache.draft)?.handler.dtype();
    let latents = latents(situation)?;
    let said = latents.stored(latents.word(situation.budget.dtypes.kv, kept)?, None).err()?;
    Some(refusal(situation.version, said))
}

fn refusal(version: Version, said: String) -> EngineRefusal {
    EngineRefusal::Kernel { engine: super::RULES.name, version, said }
}

/// How the model's latents are stored where `--kv-cache-dtype` and `--attention-backend` say so.
pub(super) fn told(telling: &Telling<'_>) -> Result<Option<Stored>, EngineRefusal> {
    let &Telling { version, capability, .. } = telling;
    let model_type = &*telling.model.model_type;
    if Family::of(model_type).is_some_and(|family| version < family.since()) {
        return Err(Family::unknown(model_type, version));
    }
    let handlers = || telling.caches.iter().map(|cache| &cache.handler);
    let Some(latents) = Latents::of(&handlers(), model_type, version, capability) else {
        return Ok(None);
    };
    let kept = handlers().find(|handler| handler.kind().is_kv()).map(ResourceHandler::dtype);
    let Some(word) = telling.word.or_else(|| latents.word(telling.stated, kept?)) else { return Ok(None) };
    latents.stored(word, telling.backend).map_err(|said| refusal(version, said))
}

/// The latents of a situation, where it has any.
pub(super) fn latents<'a>(situation: &Situation<'a>) -> Option<Latents<'a>> {
    let handlers = situation.caches.attention.iter().map(|cache| cache.handler);
    Latents::of(&handlers, &situation.model.model_type, situation.version, super::capability(situation))
}
