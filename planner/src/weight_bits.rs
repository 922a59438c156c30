//! What the weights would take if a model were quantised: assumed, since nobody has quantised it yet.

use std::fmt;

use cacheplan_transforms::WeightBytes;
use serde::Deserialize;

use crate::bound::Work;
use crate::engines::Engine;
use crate::model_caches::ModelCaches;
use crate::request::PlanRequest;

/// Bits of a weight of a model that is quantised for serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
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

impl TryFrom<u32> for WeightBits {
    type Error = String;

    fn try_from(bits: u32) -> Result<Self, String> {
        match bits {
            8 => Ok(Self::Eight),
            4 => Ok(Self::Four),
            _ => Err(format!("weights of {bits} bits; 8 or 4 were expected")),
        }
    }
}

impl fmt::Display for WeightBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-bit", self.count())
    }
}

impl ModelCaches {
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
    /// [`ModelCaches::weights_at`] so many bits, as an engine has them.
    pub fn weights_at(&self, bits: WeightBits, engine: Option<Engine>) -> Option<u64> {
        let in_blocks = engine.is_some_and(|engine| engine.rules().weights_in_blocks);
        self.model().weights_at(bits.bytes(in_blocks)).map(|weights| weights.bytes)
    }
}
