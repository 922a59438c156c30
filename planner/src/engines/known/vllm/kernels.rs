//! Kernels of attention: which vLLM chooses for what is asked of them, whether it takes one that is named, and how it stores what
//! `--kv-cache-dtype` says.
//!
//! The first that takes all is chosen (`_get_backend_priorities`, `validate_configuration`); where none does, or one that is named does not,
//! vLLM does not start. Versions before 0.12.0 do not ask.

pub(super) mod table;

use std::ops::ControlFlow;

use cacheplan_handlers::{DType, Kind, ResourceHandler};

use super::packed::Family;
use crate::budget::EngineOptions;
use crate::engines::caches::{HOPPER, Packing, packed_bytes};
use crate::engines::situation::Situation;
use crate::engines::stored::{OfAttention, Stored, Telling};
use crate::engines::version::Version;
use crate::error::EngineRefusal;
use table::{
    AUTO, Asked, BF16, Dcp, F16, FP8, KERNELS, Kernel, MANY_WORDS, NAMED_SINCE, PACKED, READ, WITH_ROPE, WITHOUT_CODE,
};

/// Read in 0.12.0, and not in 0.11.2: kernels are asked.
const ASKS: Version = Version(0, 12, 0);
/// Tokens of a block that nobody states, where kernels read such.
const USUAL_BLOCK: u64 = 16;
/// Model types with a sink beside every head.
const WITH_SINKS: [&str; 1] = ["gpt_oss"];
/// How model types begin that bring kernels of their own.
const WITH_KERNELS: [&str; 3] = ["mimo_v2", "minimax_m3", "step5"];

/// The GPU, as vLLM's platforms tell them apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gpu {
    /// Its compute capability, times ten.
    Cuda(u32),
    /// Its `gfx` number.
    Rocm(u32),
}

impl Gpu {
    /// AMD's kernels were read in one version; others are taken to choose Hopper's there.
    fn of(capability: u32, gfx: Option<u32>, version: Version) -> Self {
        gfx.filter(|_| version >= READ).map_or(Self::Cuda(capability), Self::Rocm)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Cuda(_) => "cuda",
            Self::Rocm(_) => "rocm",
        }
    }
}

/// What is asked of a kernel.
pub(super) struct Wanted<'a> {
    model: &'a str,
    latents: bool,
    sparse: bool,
    /// Elements of a head, or of a latent of a model that multiplies none out; of layers that differ each.
    heads: Vec<u64>,
    version: Version,
    gpu: Gpu,
    dcp: bool,
    told: OfAttention<'a>,
}

impl<'a> Wanted<'a> {
    /// Of the latents of a model.
    fn latents(model: &'a str, width: u64, sparse: bool, version: Version, gpu: Gpu) -> Self {
        Self {
            model,
            latents: true,
            sparse,
            heads: vec![width],
            version,
            gpu,
            dcp: false,
            told: OfAttention::default(),
        }
    }

    /// Of a model that keeps such caches; none where it has no attention, or one of its own.
    fn of<'b>(
        handlers: &(impl Iterator<Item = &'b ResourceHandler> + Clone),
        model: &'a str,
        version: Version,
        gpu: Gpu,
    ) -> Option<Self> {
        let of_kind = |kind: Kind| handlers.clone().filter(move |handler| *handler.kind() == kind);
        let is_packed = Family::of(model).is_some_and(Family::packs);
        let sparse = of_kind(Kind::IndexKey).next().is_some();
        if let Some(latent) = of_kind(Kind::MlaPaged).next() {
            return Some(Self::latents(model, latent.dim("head_dim").unwrap_or(0), sparse, version, gpu));
        }
        if is_packed {
            return Some(Self::latents(model, 0, sparse, version, gpu));
        }
        let mut heads: Vec<u64> = of_kind(Kind::KvPaged).filter_map(|handler| handler.dim("head_dim")).collect();
        heads.sort_unstable();
        heads.dedup();
        let brings = WITH_KERNELS.iter().any(|begins| model.starts_with(begins)) || Family::of(model).is_some();
        let is_plain = !heads.is_empty() && !sparse && !brings && version >= READ;
        is_plain.then(|| Self { latents: false, heads, ..Self::latents(model, 0, false, version, gpu) })
    }

    /// How caches are stored where `--kv-cache-dtype` is `word`, by the kernel that is named or the first that takes it; else what vLLM says.
    /// None of a kernel that is not known.
    fn stored(&self, word: &str) -> Result<Option<Stored>, String> {
        if let Some(family) = Family::of(self.model).filter(|family| family.packs()) {
            return family.stored(word, self.told.backend, self.version, self.capability()).map(Some);
        }
        if word == "nvfp4" && self.latents {
            return Err(NVFP4.to_owned());
        }
        let word = match word {
            _ if self.model != "deepseek_v32" || self.version >= MANY_WORDS => word,
            "bfloat16" => AUTO.0,
            _ if word.starts_with("fp8") => PACKED.0,
            _ => word,
        };
        let named = WITHOUT_CODE.iter().find(|(name, _)| self.told.backend == Some(*name) && self.version >= READ);
        if let Some((_, said)) = named {
            return Err((*said).to_owned());
        }
        let mut stored = None;
        for size in &self.heads {
            match self.stored_of(*size, word)? {
                ControlFlow::Break(()) => return Ok(None),
                ControlFlow::Continue(of_size) => stored = Some(of_size),
            }
        }
        // What keys and values are kept in says their dtype.
        Ok(stored.filter(|_| self.latents))
    }

    /// The same of layers with heads of such a size.
    fn stored_of(&self, size: u64, word: &str) -> Result<ControlFlow<(), Stored>, String> {
        let named = self.told.backend;
        let of_name = |kernel: &&Kernel| named.is_none_or(|name| kernel.name == name);
        let is_older = |kernel: &Kernel| self.version >= READ || kernel.versions.start < READ;
        let is_there = |kernel: &Kernel| match self.gpu {
            Gpu::Cuda(_) => !kernel.cuda.is_empty(),
            Gpu::Rocm(_) => !kernel.rocm.is_empty(),
        };
        let known = KERNELS.iter().filter(of_name).filter(|kernel| is_there(kernel) && is_older(kernel));
        if known.clone().next().is_none() {
            return Ok(ControlFlow::Break(()));
        }
        let asked = known.filter(|kernel| {
            let is_asked = named.is_some() || kernel.latents == self.latents && self.asks(kernel);
            kernel.versions.contains(&self.version) && is_asked
        });
        let takes = |kernel: &&Kernel| self.reasons(kernel, size, word).is_empty();
        if let Some(kernel) = asked.clone().find(takes) {
            let stored = self.taken(kernel, word).unwrap_or(Stored::Own);
            return match kernel.dcp == Dcp::Packed && self.divides() && stored != Stored::Packed {
                true => Err(UNPACKED.to_owned()),
                false => Ok(ControlFlow::Continue(stored)),
            };
        }
        if self.version < ASKS {
            return Ok(ControlFlow::Break(()));
        }
        // Of a kernel in several rows that which lacks the least, of those for this GPU where there are any.
        let is_own = |kernel: &&Kernel| {
            let mut alike = asked.clone().filter(|other| other.name == kernel.name);
            self.runs(kernel) || !alike.any(|other| self.runs(other))
        };
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for kernel in asked.clone().filter(is_own) {
            let of_row = self.reasons(kernel, size, word);
            match reasons.iter_mut().find(|(name, _)| *name == kernel.name) {
                Some((_, least)) if of_row.len() < least.len() => *least = of_row,
                Some(_) => {}
                None => reasons.push((kernel.name, of_row)),
            }
        }
        if let (Some(name), Some((_, reasons))) = (named, reasons.first()) {
            return Err(format!(
                "Selected backend AttentionBackendEnum.{name} is not valid for this configuration. Reason: ['{}']",
                reasons.join("', '")
            ));
        }
        let reasons: Vec<String> =
            reasons.into_iter().map(|(name, reasons)| format!("{name}: [{}]", reasons.join(", "))).collect();
        let (latents, sparse) = (python(self.latents), python(self.sparse));
        let block = self.told.block.map_or_else(|| "None".to_owned(), |block| block.to_string());
        Err(format!(
            "No valid attention backend found for {} with AttentionSelectorConfig(head_size={size}, …, kv_cache_dtype={word}, block_size={block}, use_mla={latents}, …, use_sparse={sparse}, …). Reasons: {{{}}}.",
            self.gpu.name(),
            reasons.join(", ")
        ))
    }

    /// Tokens of a block of the kernel for latents in the dtype of the model, or in 8 bits, where nobody states them.
    pub(super) fn block(&self, narrow: bool) -> Option<u64> {
        let word = if narrow { FP8.0 } else { AUTO.0 };
        let size = *self.heads.first()?;
        let takes = |kernel: &&Kernel| self.asks(kernel) && self.reasons(kernel, size, word).is_empty();
        let block = KERNELS.iter().filter(|kernel| kernel.versions.contains(&self.version)).find(takes)?.block;
        Some(if USUAL_BLOCK.is_multiple_of(block) { USUAL_BLOCK } else { block })
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
            (Some(DType::F32), _) if self.is_read() => Some(AUTO.0),
            (Some(_), _) => None,
            (None, _) => Some(AUTO.0),
        }
    }

    fn taken(&self, kernel: &Kernel, word: &str) -> Option<Stored> {
        let is_named = !NAMED_SINCE.iter().any(|(named, since)| *named == word && self.version < *since);
        kernel.words.iter().find(|(taken, _)| *taken == word && is_named).map(|(_, stored)| *stored)
    }

    /// Whether ranks divide a sequence's tokens, which older versions do not ask of kernels.
    fn divides(&self) -> bool {
        self.dcp && self.is_read()
    }

    fn is_read(&self) -> bool {
        self.version >= READ
    }

    const fn capability(&self) -> u32 {
        match self.gpu {
            Gpu::Cuda(capability) => capability,
            Gpu::Rocm(_) => HOPPER,
        }
    }

    /// Whether vLLM asks a kernel that nobody names.
    fn asks(&self, kernel: &Kernel) -> bool {
        match kernel.asked {
            Asked::Always => true,
            Asked::Never => false,
            Asked::WithAiter => self.told.aiter,
            Asked::Above(heads) => self.told.queries.is_some_and(|queries| queries > heads),
        }
    }

    fn runs(&self, kernel: &Kernel) -> bool {
        let (gpus, gpu) = match self.gpu {
            Gpu::Cuda(capability) => (kernel.cuda, capability),
            Gpu::Rocm(gfx) => (kernel.rocm, gfx),
        };
        gpus.iter().any(|of| of.contains(&gpu))
    }

    /// Why a kernel does not take a word for heads of such a size, as `validate_configuration` says it and in its order.
    fn reasons(&self, kernel: &Kernel, size: u64, word: &str) -> Vec<&'static str> {
        let read = self.is_read();
        let run_in = self.told.run_in.unwrap_or(DType::Bf16);
        let lacks = [
            (!kernel.heads.has(size, self.version), "head_size not supported"),
            (read && !kernel.dtypes.contains(&run_in), "dtype not supported"),
            (self.taken(kernel, word).is_none(), "kv_cache_dtype not supported"),
            (
                read && self.told.block.is_some_and(|block| !block.is_multiple_of(kernel.block)),
                "block_size not supported",
            ),
            (self.latents && !kernel.latents, "MLA not supported"),
            (!self.latents && kernel.latents, "non-MLA not supported"),
            (read && WITH_SINKS.contains(&self.model) && !kernel.sinks, "attention sinks not supported"),
            (self.sparse && !kernel.sparse, "sparse not supported"),
            (!self.sparse && kernel.sparse, "non-sparse not supported"),
            (!self.runs(kernel), "compute capability not supported"),
            (self.divides() && kernel.dcp == Dcp::No, "DCP not supported"),
        ];
        lacks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, reason)| reason).collect()
    }
}

const fn python(is: bool) -> &'static str {
    if is { "True" } else { "False" }
}

const NVFP4: &str = "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a different --kv-cache-dtype (e.g., 'fp8', 'auto', or 'nvfp4_ds_mla' with a sparse MLA backend) for MLA models such as DeepSeek.";
const UNPACKED: &str =
    "DCP for FlashMLA sparse requires an fp8_ds_mla kv-cache; the bf16 sparse path is not supported under DCP.";

/// Whether a kernel of that name reads latents; none where it is not known.
pub fn reads_latents(name: &str) -> Option<bool> {
    KERNELS.iter().find(|kernel| kernel.name == name).map(|kernel| kernel.latents)
}

/// What blocks are multiples of by a kernel of that name, of latents that are not sparse.
pub fn dense_block(name: &str) -> Option<u64> {
    KERNELS.iter().find(|kernel| kernel.name == name && kernel.latents && !kernel.sparse).map(|kernel| kernel.block)
}

/// Bytes of a latent of 8 bits that is stored beside its scales.
pub(super) fn packed(asked: &Packing<'_>) -> Option<u64> {
    let Packing { model, width, version, capability, gfx } = *asked;
    let latents = Wanted::latents(model, width, true, version, Gpu::of(capability, gfx, version));
    // A place for a rope key is there where there is none.
    (latents.stored(FP8.0) == Ok(Some(Stored::Packed))).then_some(packed_bytes(WITH_ROPE))
}

/// The refusal where no kernel reads what the budget states, or what the model is kept in.
pub(super) fn refuses(situation: &Situation<'_>) -> Option<EngineRefusal> {
    let kept = situation.caches.attention.iter().find(|cache| !cache.draft)?.handler.dtype();
    let wanted = wanted(situation)?;
    let said = wanted.stored(wanted.word(situation.budget.dtypes.kv, kept)?).err()?;
    Some(refusal(situation.version, said))
}

fn refusal(version: Version, said: String) -> EngineRefusal {
    EngineRefusal::Kernel { engine: super::RULES.name, version, said }
}

/// How the model's latents are stored where `--kv-cache-dtype` and `--attention-backend` say so.
pub(super) fn told(telling: &Telling<'_>) -> Result<Option<Stored>, EngineRefusal> {
    let &Telling { version, capability, gfx, dcp, told, .. } = telling;
    let model_type = &*telling.model.model_type;
    if Family::of(model_type).is_some_and(|family| version < family.since()) {
        return Err(Family::unknown(model_type, version));
    }
    let handlers = || telling.caches.iter().map(|cache| &cache.handler);
    let Some(wanted) = Wanted::of(&handlers(), model_type, version, Gpu::of(capability, gfx, version)) else {
        return Ok(None);
    };
    let kept = handlers().find(|handler| handler.kind().is_kv()).map(ResourceHandler::dtype);
    let Some(word) = told.word.or_else(|| wanted.word(telling.stated, kept?)) else { return Ok(None) };
    Wanted { dcp, told, ..wanted }.stored(word).map_err(|said| refusal(version, said))
}

/// What a situation asks of kernels, where it has attention.
pub(super) fn wanted<'a>(situation: &Situation<'a>) -> Option<Wanted<'a>> {
    let own = situation.caches.attention.iter().filter(|cache| !cache.draft);
    let handlers = own.map(|cache| cache.handler);
    let gpu = Gpu::of(super::capability(situation), situation.options.gfx, situation.version);
    let dcp = situation.budget.parallel.dcp > 1;
    let wanted = Wanted::of(&handlers, &situation.model.model_type, situation.version, gpu)?;
    Some(Wanted { dcp, ..wanted })
}

/// Whether vLLM runs AMD's kernels, as far as they were read.
pub(super) fn is_amd(options: &EngineOptions, version: Version) -> bool {
    matches!(Gpu::of(HOPPER, options.gfx, version), Gpu::Rocm(_))
}

#[cfg(test)]
mod tests;
