//! Attention over paged KV pools: what it is told, and what it refuses.

use super::quant::{KvQuant, check_quant};
use crate::batch::PagedBatch;
use crate::error::{KernelError, Result};
use crate::view::KvLayerView;
use candle_core::Tensor;

const OP: &str = "paged_attention";

/// Which past keys a query sees. PagedAttention is always causal: a key after the query is never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// All of them.
    Full,
    /// The last `n` positions, the query's own included.
    Sliding(usize),
    /// Those in the query's own chunk of `n` positions.
    Chunked(usize),
}

impl Window {
    /// The first position that the query at `position` sees.
    pub(crate) fn first_visible(self, position: usize) -> usize {
        match self {
            Self::Full => 0,
            Self::Sliding(n) => (position + 1).saturating_sub(n),
            Self::Chunked(n) => position / n * n,
        }
    }
}

/// How scores are made from queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttention<'a> {
    /// Factor on `q . k`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// Which keys are seen.
    pub window: Window,
    /// `[num_heads]` logits that take part in the softmax's denominator only.
    pub sinks: Option<&'a [f32]>,
    /// `[num_heads]` ALiBi slopes: `slope * (key position - query position)` is added to the score.
    pub alibi_slopes: Option<&'a [f32]>,
    /// Elements of a value row. Less than `head_dim` only in a latent pool (`kv_factor` 1), whose values are the
    /// first elements of its keys (absorbed MLA).
    pub value_dim: usize,
    /// How an 8-bit or 4-bit pool stores rows; none for any other.
    pub quant: Option<KvQuant<'a>>,
}

impl PagedAttention<'_> {
    /// Plain causal attention with values as wide as keys.
    pub fn new(scale: f32, value_dim: usize) -> Self {
        Self { scale, softcap: None, window: Window::Full, sinks: None, alibi_slopes: None, value_dim, quant: None }
    }
}

impl PagedAttention<'_> {
    /// What stored keys (`kv` 0) or values of a head are multiplied by.
    pub(crate) fn stored_factor(&self, view: &KvLayerView, kv: usize, head: usize) -> f32 {
        self.quant.map_or(1.0, |quant| quant.factor(view, kv, head))
    }
}

/// Checks the operands of a call.
pub(super) fn check(
    attention: &PagedAttention<'_>,
    q: &Tensor,
    pool: &Tensor,
    view: &KvLayerView,
    batch: &PagedBatch<'_>,
) -> Result<()> {
    let num_blocks = view.check(OP, pool)?;
    let (total_tokens, num_heads, head_dim) = match q.dims() {
        &[tokens, heads, dim] => (tokens, heads, dim),
        found => {
            return Err(KernelError::Shape {
                op: OP,
                operand: "q",
                found: found.to_vec(),
                expected: "[total_tokens, num_heads, head_dim]".to_owned(),
            });
        }
    };
    batch.check(OP, total_tokens)?;
    check_heads(view, attention, num_heads, head_dim)?;
    if batch.parents.is_some() && attention.alibi_slopes.is_some() {
        let reason = "keys of a tree have no distance by where they lie; slopes are for tokens in a row".to_owned();
        return Err(KernelError::Argument { op: OP, reason });
    }
    if batch.chosen.is_some() && (attention.window != Window::Full || attention.alibi_slopes.is_some()) {
        let reason = "tokens that choose what they see have neither a window nor slopes".to_owned();
        return Err(KernelError::Argument { op: OP, reason });
    }
    check_quant(OP, pool, view, attention.quant.as_ref(), head_dim)?;
    check_blocks(view, batch, attention.window, num_blocks)
}

fn check_heads(view: &KvLayerView, attention: &PagedAttention<'_>, num_heads: usize, head_dim: usize) -> Result<()> {
    let refuse = |reason: String| Err(KernelError::Argument { op: OP, reason });
    if num_heads == 0 || !num_heads.is_multiple_of(view.num_kv_heads) {
        return refuse(format!("{num_heads} query heads cannot share {} KV heads evenly", view.num_kv_heads));
    }
    let value_dim = attention.value_dim;
    let fits = match view.kv_factor {
        1 => (1..=head_dim).contains(&value_dim),
        _ => value_dim == head_dim,
    };
    if !fits {
        return refuse(format!(
            "value_dim {value_dim} does not fit head_dim {head_dim} with kv_factor {}",
            view.kv_factor
        ));
    }
    if matches!(attention.window, Window::Sliding(0) | Window::Chunked(0)) {
        return refuse("a window of 0 positions sees nothing".to_owned());
    }
    for (per_head, name) in [(attention.sinks, "sinks"), (attention.alibi_slopes, "alibi_slopes")] {
        if let Some(found) = per_head.map(<[f32]>::len).filter(|&len| len != num_heads) {
            return refuse(format!("{name} has {found} entries for {num_heads} heads"));
        }
    }
    Ok(())
}

/// Checks that every block that some query sees exists.
fn check_blocks(view: &KvLayerView, batch: &PagedBatch<'_>, window: Window, num_blocks: usize) -> Result<()> {
    for sequence in 0..batch.len() {
        let kv_len = batch.kv_lens[sequence] as usize;
        let queries = batch.rows(sequence).len();
        if kv_len == 0 || queries == 0 {
            continue;
        }
        let first = window.first_visible(kv_len - queries) / view.tokens_per_block;
        let last = (kv_len - 1) / view.tokens_per_block;
        let blocks = batch.blocks(sequence);
        for logical in first..=last {
            let found = blocks.get(logical).copied().unwrap_or(-1);
            if usize::try_from(found).map_or(true, |block| block >= num_blocks) {
                return Err(KernelError::index(
                    OP,
                    "block_tables",
                    sequence * batch.max_blocks + logical,
                    found,
                    format!("but sequence {sequence} sees that block: expected less than {num_blocks}"),
                ));
            }
        }
    }
    Ok(())
}
