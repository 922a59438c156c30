//! What the weights would take if a model were quantised: assumed, since nobody has quantised it yet.

use std::fmt;
use std::str::FromStr;

use cacheplan_handlers::DType;
use cacheplan_transforms::WeightBytes;

use crate::bound::Work;
use crate::engines::{Engine, EngineSpec};
use crate::model_caches::ModelCaches;
use crate::request::PlanRequest;
use crate::size::ByteSize;

/// Bits of a weight of a model that is quantised for serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightBits {
    /// 8 bits.
    Eight,
    /// 4 bits.
    Four,
}

impl WeightBits {
    /// All of them, the most bits first.
    pub const ALL: [Self; 2] = [Self::Eight, Self::Four];

    /// How many.
    pub const fn count(self) -> u32 {
        match self {
            Self::Eight => 8,
            Self::Four => 4,
        }
    }

    /// Bytes of an element. Beside 8 bits of `fp8` a scale of a tensor or of a channel is nothing, where blocks are GGML's 32
    /// elements share one of 16 bits (`q8_0`); of 4 bits 16 share one of 8 (`nvfp4`), or 32 one of 16 (`q4_0`).
    const fn bytes(self, in_blocks: bool) -> f64 {
        match self {
            Self::Eight if in_blocks => 34.0 / 32.0,
            Self::Eight => 1.0,
            Self::Four => 18.0 / 32.0,
        }
    }
}

impl fmt::Display for WeightBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-bit", self.count())
    }
}

/// What weights take, as it is stated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StatedWeights {
    /// So many bytes over all devices.
    Bytes(ByteSize),
    /// So many bits each.
    Bits(WeightBits),
    /// As a GGUF file of that type has them.
    Gguf(GgufType),
}

impl StatedWeights {
    /// Whether an engine makes them itself of those of a model, where these are in full.
    pub(crate) fn are_made_by(self, engine: Engine, in_full: bool) -> bool {
        self == Self::Bits(WeightBits::Eight) && engine.quantizes() && in_full
    }
}

impl fmt::Display for StatedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(size) => size.fmt(f),
            Self::Bits(bits) => bits.fmt(f),
            Self::Gguf(of) => f.write_str(of.name),
        }
    }
}

impl From<ByteSize> for StatedWeights {
    fn from(size: ByteSize) -> Self {
        Self::Bytes(size)
    }
}

/// A size, or a word for bits as people write it: `fp8`, `int4`, `Q4_K_M`.
impl FromStr for StatedWeights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = text.trim().to_lowercase().replace(['-', '_'], "");
        match &*word {
            "fp8" | "f8" | "float8" | "int8" | "8bit" | "8bits" | "w8a8" | "w8a16" => Ok(Self::Bits(WeightBits::Eight)),
            "fp4" | "nvfp4" | "mxfp4" | "int4" | "4bit" | "4bits" | "w4a16" | "awq" | "gptq" => {
                Ok(Self::Bits(WeightBits::Four))
            }
            _ => match GgufType::named(text.trim()) {
                Some(of) => Ok(Self::Gguf(of)),
                None => text
                    .parse()
                    .map(Self::Bytes)
                    .map_err(|error| format!("{error}; or bits, such as fp8, int4 or Q4_K_M")),
            },
        }
    }
}

/// How a GGUF file is quantised, which its name says: `Q4_K_M` in `Qwen3-8B-Q4_K_M.gguf`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GgufType {
    /// As `llama-quantize` calls it.
    pub name: &'static str,
    /// Bits of a weight, all tensors together.
    bits: f64,
}

/// What `llama-quantize` says of Llama 3.1 8B (tools/quantize/README.md); of the types that it leaves out there their blocks.
#[rustfmt::skip]
const GGUF_TYPES: [(&str, f64); 35] = [
    ("IQ1_S", 2.0042), ("IQ1_M", 2.1460), ("IQ2_XXS", 2.3824), ("IQ2_XS", 2.5882), ("IQ2_S", 2.7403), ("IQ2_M", 2.9294),
    ("IQ3_XXS", 3.2548), ("IQ3_XS", 3.4977), ("IQ3_S", 3.6606), ("IQ3_M", 3.7628), ("IQ4_XS", 4.4597), ("IQ4_NL", 4.6818),
    ("TQ1_0", 1.6875), ("TQ2_0", 2.0625), ("Q2_K_S", 2.9697), ("Q2_K_L", 3.1593), ("Q2_K_XL", 3.1593), ("Q2_K", 3.1593),
    ("Q3_K_S", 3.6429), ("Q3_K_M", 3.9960), ("Q3_K_L", 4.2979), ("Q3_K_XL", 4.2979), ("Q4_0", 4.6), ("Q4_1", 5.1),
    ("Q4_K_S", 4.6672), ("Q4_K_M", 4.8944), ("Q4_K_XL", 4.8944), ("Q5_0", 5.6), ("Q5_1", 6.1), ("Q5_K_S", 5.5704),
    ("Q5_K_M", 5.7036), ("Q5_K_XL", 5.7036), ("Q6_K", 6.5633), ("Q8_0", 8.5008), ("MXFP4", 4.5),
];
/// Bits of the blocks that tables are kept in at most: those of `Q8_0`.
const TABLES: f64 = 8.5;
/// The part of its size by which a file may be smaller.
const SMALLER: f64 = 0.05;

impl GgufType {
    /// Bits of a weight, all tensors together.
    pub const fn bits(self) -> f64 {
        self.bits
    }

    /// The type of that name, however it is capitalised.
    pub fn named(name: &str) -> Option<Self> {
        let known = GGUF_TYPES.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(name, bits)| Self { name, bits })
    }

    /// The type that the name of a file says.
    pub fn of_file(name: &str) -> Option<Self> {
        let file = name.rsplit('/').next().unwrap_or(name);
        file.split(['-', '.', ':']).find_map(Self::named)
    }
}

impl ModelCaches {
    /// Whether its config says of no quantisation.
    pub fn is_in_full(&self) -> bool {
        self.model().is_some_and(|model| !model.config.contains_key("quantization_config"))
    }

    /// Bytes of a file of that type at least, as they are assumed, and at most: what its tables are kept in differs. `None` where the
    /// model's own weights are not known in one dtype.
    pub fn weights_in(&self, of: GgufType) -> Option<[u64; 3]> {
        let stored = self.info().weights.filter(|_| self.is_in_full())?;
        let each = self.info().dtype.row_bytes(1 << 10)? as f64 / 1024.0;
        let tables = stored.classes.map_or(0, |classes| classes.embeddings) as f64 / each;
        let all = stored.bytes as f64 / each;
        let assumed = all * of.bits / 8.0;
        let most = assumed + tables * (TABLES - of.bits).max(0.0) / 8.0;
        Some([assumed * (1.0 - SMALLER), assumed, most.max(assumed * (1.0 + SMALLER))].map(|bytes| bytes as u64))
    }

    /// All weights where they are cast to another dtype as they are loaded; `None` of quantised ones, and where their size is not known.
    pub fn weights_cast(&self, dtype: DType) -> Option<WeightBytes> {
        let stored = self.info().weights.filter(|_| self.is_in_full())?;
        let [from, to] = [self.info().dtype, dtype].map(|dtype| dtype.row_bytes(1));
        let (from, to) = from.zip(to).filter(|(from, _)| *from > 0)?;
        let cast = |bytes: u64| bytes.saturating_mul(to) / from;
        let classes = stored.classes.map(|mut classes| {
            let parts = [
                &mut classes.attention,
                &mut classes.dense,
                &mut classes.routed,
                &mut classes.shared,
                &mut classes.embeddings,
                &mut classes.replicated,
            ];
            parts.into_iter().for_each(|part| *part = cast(*part));
            classes
        });
        Some(WeightBytes { classes, ..WeightBytes::new(cast(stored.bytes), false) })
    }

    /// All weights where those of its layers take so many bytes each, assumed: embeddings, head and norms stay as they are
    /// stored, and so does what takes fewer already. `None` where the layers or the size of the weights are not known.
    pub fn weights_at(&self, bytes: f64) -> Option<WeightBytes> {
        let stored = self.info().weights?;
        let saved = Work::of(self, Some(stored))?.saved_at(bytes);
        let classes = stored.classes.map(|mut classes| {
            let parts = [&mut classes.attention, &mut classes.dense, &mut classes.shared, &mut classes.routed];
            parts.into_iter().zip(saved).for_each(|(part, saved)| *part = part.saturating_sub(saved));
            classes
        });
        let bytes = saved.into_iter().fold(stored.bytes, u64::saturating_sub);
        Some(WeightBytes { classes, ..WeightBytes::new(bytes, false) })
    }
}

impl PlanRequest {
    /// Bytes of weights that are stated so, as an engine has them; `None` where the model's own are not known.
    pub fn weights_as(&self, stated: StatedWeights, engine: Option<Engine>) -> Option<ByteSize> {
        match stated {
            StatedWeights::Bytes(size) => Some(size),
            StatedWeights::Bits(bits) => self.weights_at(bits, engine).map(ByteSize),
            StatedWeights::Gguf(of) => self.model().weights_in(of).map(|[_, bytes, _]| ByteSize(bytes)),
        }
    }

    /// Whether an engine makes such weights itself of those that a checkpoint has in full.
    pub(crate) fn quantizes(&self, stated: Option<StatedWeights>, engine: EngineSpec) -> bool {
        stated.is_some_and(|stated| stated.are_made_by(engine.engine, self.model().is_in_full()))
    }

    /// [`ModelCaches::weights_at`] so many bits, as an engine has them.
    pub fn weights_at(&self, bits: WeightBits, engine: Option<Engine>) -> Option<u64> {
        let in_blocks = engine.is_some_and(|engine| engine.rules().weights_in_blocks);
        self.model().weights_at(bits.bytes(in_blocks)).map(|weights| weights.bytes)
    }
}
