//! Bytes of a model's weights, and how much of them engines divide in which way.

use cacheplan_handlers::DType;
use serde::{Deserialize, Serialize};

/// The size of a model's weights and how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightBytes {
    /// Bytes over all ranks.
    pub bytes: u64,
    /// Read from tensor headers (exact), or computed from dimensions or stated (assumed).
    pub exact: bool,
    /// Whether files state them that are not all there: an index of absent ones, or the header of one that is cut short.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unproven: bool,
    /// The same bytes by class; `None` where nothing tells them apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<WeightClasses>,
}

/// Bytes over all ranks of weights that several ranks divide in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightClasses {
    /// Attention and mixers.
    pub attention: u64,
    /// Dense feed-forward blocks.
    pub dense: u64,
    /// Experts that tokens are routed to.
    pub routed: u64,
    /// Experts that every token passes.
    pub shared: u64,
    /// Token embeddings and the head.
    pub embeddings: u64,
    /// What every rank holds whole: norms, routers, projections down to a latent, and whatever is none of the others.
    pub replicated: u64,
    /// Of the embeddings those of a head of its own; none where the token embeddings are the head too.
    #[serde(default, skip_serializing_if = "is_none")]
    pub head: u64,
    /// Of the dense ones those of towers for images and sound.
    #[serde(default, skip_serializing_if = "is_none")]
    pub tower: u64,
    /// Of the replicated ones those of towers.
    #[serde(default, skip_serializing_if = "is_none")]
    pub whole_tower: u64,
}

/// One of the [`WeightClasses`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightClass {
    Attention,
    Dense,
    Routed,
    Shared,
    Embeddings,
    Head,
    Replicated,
    Tower,
    WholeTower,
}

const fn is_none(bytes: &u64) -> bool {
    *bytes == 0
}

/// How a matrix is stored where a checkpoint is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// In this element type.
    As(DType),
    /// In whole numbers of so many bits, with so many bits of scale and zero point for a group; no group is a whole column,
    /// whose scale is not counted.
    Packed { bits: u64, group: Option<u64>, of_group: u64 },
}

impl Stored {
    /// Bytes of so many elements, and those of their scales that no element type counts.
    pub(crate) fn bytes(self, elements: u64) -> Option<u64> {
        match self {
            Self::As(dtype) => dtype.row_bytes(elements),
            Self::Packed { bits, group, of_group } => {
                let scales = group.map_or(Some(0), |group| elements.div_ceil(group).checked_mul(of_group))?;
                Some(elements.checked_mul(bits)?.checked_add(scales)?.div_ceil(8))
            }
        }
    }
}

impl WeightBytes {
    /// Bytes of which nothing tells the classes.
    pub const fn new(bytes: u64, exact: bool) -> Self {
        Self { bytes, exact, unproven: false, classes: None }
    }

    /// Bytes that an index of files states which are not there.
    pub(crate) const fn unproven(bytes: u64) -> Self {
        Self { unproven: true, ..Self::new(bytes, false) }
    }

    /// Bytes that only dimensions tell; `None` if they do not fit 63 bits.
    pub(crate) fn of_dimensions(classes: WeightClasses) -> Option<Self> {
        let bytes = classes.sum().filter(|&bytes| bytes <= i64::MAX as u64)?;
        Some(Self { classes: Some(classes), ..Self::new(bytes, false) })
    }

    /// These bytes, where their classes are unknown in the proportions of an estimate.
    #[must_use]
    pub fn in_proportion_to(self, estimate: Option<Self>) -> Self {
        let classes = self.classes.or_else(|| Some(estimate?.classes?.scaled_to(self.bytes)));
        Self { classes, ..self }
    }
}

impl WeightClasses {
    /// The bytes of all classes; `None` if they do not fit.
    pub(crate) fn sum(&self) -> Option<u64> {
        let Self { attention, dense, routed, shared, embeddings, replicated, .. } = *self;
        [attention, dense, routed, shared, embeddings, replicated].iter().try_fold(0u64, |sum, &of| sum.checked_add(of))
    }

    /// Counts `bytes` more of a class; `None` if they do not fit.
    pub(crate) fn add(&mut self, class: WeightClass, bytes: u64) -> Option<()> {
        let part = match class {
            WeightClass::Head => Some(&mut self.head),
            WeightClass::Tower => Some(&mut self.tower),
            WeightClass::WholeTower => Some(&mut self.whole_tower),
            _ => None,
        };
        if let Some(part) = part {
            *part = part.checked_add(bytes)?;
        }
        let sum = match class {
            WeightClass::Attention => &mut self.attention,
            WeightClass::Dense | WeightClass::Tower => &mut self.dense,
            WeightClass::Routed => &mut self.routed,
            WeightClass::Shared => &mut self.shared,
            WeightClass::Embeddings | WeightClass::Head => &mut self.embeddings,
            WeightClass::Replicated | WeightClass::WholeTower => &mut self.replicated,
        };
        *sum = sum.checked_add(bytes)?;
        Some(())
    }

    /// The same proportions of other bytes; what rounding leaves is replicated.
    fn scaled_to(&self, bytes: u64) -> Self {
        let whole = u128::from(self.sum().unwrap_or(0)).max(1);
        let share = |of: u64| (u128::from(of) * u128::from(bytes) / whole) as u64;
        let mut scaled = Self {
            attention: share(self.attention),
            dense: share(self.dense),
            routed: share(self.routed),
            shared: share(self.shared),
            embeddings: share(self.embeddings),
            replicated: 0,
            head: share(self.head),
            tower: share(self.tower),
            whole_tower: share(self.whole_tower),
        };
        scaled.replicated = bytes - scaled.sum().unwrap_or(bytes).min(bytes);
        scaled
    }
}

impl WeightClass {
    /// The class of a weight that [`GraphBuilder`](crate::GraphBuilder) adds, by its name inside the layer.
    pub(crate) fn of_part(part: &str) -> Self {
        match part {
            "embed_tokens.weight" | "ngram.table" => Self::Embeddings,
            "lm_head.weight" => Self::Head,
            "mlp.weight" => Self::Dense,
            "tower.matrices" => Self::Tower,
            "tower" => Self::WholeTower,
            "mlp.experts.weight" => Self::Routed,
            "mlp.shared.weight" => Self::Shared,
            "mla.query_down.weight" | "mla.kv_down.weight" | "more" => Self::Replicated,
            _ if part.starts_with("mlp.") || part.starts_with("indexer.") => Self::Replicated,
            _ => Self::Attention,
        }
    }

    /// The class of a tensor in a file, by the words of its name: the first line of the table that has one of them.
    pub(crate) fn of_tensor(name: &str) -> Self {
        const WORDS: [(&[&str], WeightClass); 10] = [
            // Towers beside the decoder.
            (&["visual", "vision_tower", "vision_model", "audio_tower"], WeightClass::WholeTower),
            (&["mtp_block"], WeightClass::Replicated),
            (&["q_a_proj", "kv_a_proj_with_mqa", "indexer", "router", "gate"], WeightClass::Replicated),
            (&["shared_expert", "shared_experts", "shared_mlp"], WeightClass::Shared),
            (&["experts"], WeightClass::Routed),
            (&["lm_head"], WeightClass::Head),
            (&["embed_tokens", "wte", "embeddings", "word_embeddings"], WeightClass::Embeddings),
            (&["mlp", "feed_forward", "ffn", "gate_proj", "up_proj", "gate_up_proj", "down_proj"], WeightClass::Dense),
            (&["self_attn", "self_attention", "attention", "attn", "linear_attn"], WeightClass::Attention),
            (&["mixer", "mamba", "conv", "temporal_block", "time_mixer"], WeightClass::Attention),
        ];
        let words = || name.split('.');
        let of_words = |(listed, _): &&(&[&str], Self)| words().any(|word| listed.contains(&word));
        let is_whole = words().any(|word| word.contains("norm") || word.ends_with("_bias"));
        if is_whole && !of_words(&&WORDS[0]) {
            return Self::Replicated;
        }
        // All experts of a layer in two tensors.
        if words().any(|word| matches!(word, "input_linear" | "output_linear"))
            && words().any(|word| word == "block_sparse_moe")
        {
            return Self::Routed;
        }
        WORDS.iter().find(of_words).map_or(Self::Replicated, |(_, class)| *class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("model.layers.3.mlp.experts.7.up_proj.weight", WeightClass::Routed)]
    #[case("model.layers.3.block_sparse_moe.experts.7.w1.weight", WeightClass::Routed)]
    #[case("model.layers.3.block_sparse_moe.input_linear.weight", WeightClass::Routed)]
    #[case("model.layers.3.mlp.shared_experts.up_proj.weight", WeightClass::Shared)]
    #[case("model.layers.3.shared_mlp.input_linear.weight", WeightClass::Shared)]
    #[case("model.layers.3.mlp.gate.weight", WeightClass::Replicated)]
    #[case("model.layers.3.mlp.gate_proj.weight", WeightClass::Dense)]
    #[case("backbone.layers.3.mixer.up_proj.weight", WeightClass::Dense)]
    #[case("backbone.layers.3.mixer.in_proj.weight", WeightClass::Attention)]
    #[case("model.layers.3.self_attn.q_a_proj.weight", WeightClass::Replicated)]
    #[case("model.layers.3.self_attn.q_b_proj.weight_scale_inv", WeightClass::Attention)]
    #[case("model.layers.3.self_attn.q_norm.weight", WeightClass::Replicated)]
    #[case("model.embed_tokens.weight", WeightClass::Embeddings)]
    #[case("lm_head.weight", WeightClass::Head)]
    #[case("model.visual.blocks.3.norm1.weight", WeightClass::WholeTower)]
    #[case("something.else", WeightClass::Replicated)]
    fn a_tensor_has_the_class_of_its_words(#[case] name: &str, #[case] class: WeightClass) {
        assert_eq!(WeightClass::of_tensor(name), class);
    }

    #[test]
    fn proportions_of_other_bytes_add_up_to_them() {
        let classes = WeightClasses { attention: 1, routed: 2, ..WeightClasses::default() };
        let stated = WeightBytes::new(100, true).in_proportion_to(WeightBytes::of_dimensions(classes));
        let expected = WeightClasses { attention: 33, routed: 66, replicated: 1, ..WeightClasses::default() };
        assert_eq!(stated.classes, Some(expected));
        assert!(stated.exact);
    }
}
