//! Constructors of the known kinds.

use crate::handler::{OWN_COLUMNS, WITH_CANDIDATES, refuse_empty};
use crate::{DType, Dim, Growth, HandlerError, Kind, KvLayout, Recurrence, ResourceHandler, Ring, Split};

const EVERY_TOKEN: Growth = Growth::Paged { stride: 1, window: None };

impl ResourceHandler {
    /// Keys and values of attention: shape `[kv_factor = 2, num_kv_heads, head_dim]` per token, in pages, HND.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn kv_paged(num_kv_heads: u64, head_dim: u64, dtype: DType) -> Result<Self, HandlerError> {
        let shape = kv_shape(2, num_kv_heads, head_dim);
        Self::new(Kind::KvPaged, EVERY_TOKEN, shape, dtype, Some(KvLayout::Hnd))
    }

    /// The latent cache of MLA: shape `[kv_factor = 1, 1, kv_lora_rank + qk_rope_head_dim]` per token, in pages.
    ///
    /// The latent is shared by all heads, so ranks do not divide it.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn mla_paged(kv_lora_rank: u64, qk_rope_head_dim: u64, dtype: DType) -> Result<Self, HandlerError> {
        let latent = kv_lora_rank.saturating_add(qk_rope_head_dim);
        if kv_lora_rank == 0 {
            return Err(HandlerError::ZeroDim { kind: Kind::MlaPaged, dim: "kv_lora_rank".into() });
        }
        Self::mla_latent(1, latent, dtype)
    }

    /// The latent of MLA without its rope key: `columns` of equal width, each of which is stored for all tokens of a block
    /// before the next. One column is a row for each token; columns of 32 bytes are the NZ order of Ascend.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn mla_latent(columns: u64, width: u64, dtype: DType) -> Result<Self, HandlerError> {
        Self::new(Kind::MlaPaged, EVERY_TOKEN, columns_shape(columns, width), dtype, Some(KvLayout::Hnd))
    }

    /// The rope key that belongs to such a latent, in columns of its own.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn mla_rope(columns: u64, width: u64, dtype: DType) -> Result<Self, HandlerError> {
        Self::new(Kind::MlaRope, EVERY_TOKEN, columns_shape(columns, width), dtype, Some(KvLayout::Hnd))
    }

    /// The recurrent state of Mamba-2 and its relatives: shape `[num_heads, head_dim, d_state]` per sequence.
    ///
    /// A gated delta net's state is `[num_v_heads, head_k_dim, head_v_dim]`; Mamba-1's is `[d_inner, 1, d_state]`.
    /// [`ResourceHandler::with_recurrence`] says which it is.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn ssm(num_heads: u64, head_dim: u64, d_state: u64, dtype: DType) -> Result<Self, HandlerError> {
        let shape = vec![
            Dim::split("num_heads", num_heads, Split::Heads),
            Dim::whole("head_dim", head_dim),
            Dim::whole("d_state", d_state),
        ];
        Self::new(Kind::Ssm, Growth::PerSequence, shape, dtype, None)
    }

    /// The state of a causal convolution: logical shape `[conv_dim, d_conv - 1]` per sequence.
    ///
    /// `sections` are the consecutive channel groups that ranks divide one by one, `[d_inner, g, g]` for Mamba-2;
    /// empty for one group. A convolution of width 1 has no state and needs no handler.
    ///
    /// # Errors
    /// A zero or absurd dimension, `d_conv < 2`, or sections that do not add up to `conv_dim`.
    pub fn causal_conv(conv_dim: u64, d_conv: u64, sections: Vec<u64>, dtype: DType) -> Result<Self, HandlerError> {
        let sections = if sections.is_empty() { vec![conv_dim] } else { sections };
        let shape = vec![
            Dim::split("conv_dim", conv_dim, Split::Sections(sections)),
            Dim::whole(OWN_COLUMNS, d_conv.saturating_sub(1)),
        ];
        Self::new(Kind::CausalConv, Growth::PerSequence, shape, dtype, None)
    }

    /// The keys of a sparse attention's indexer: a vector for each `stride` tokens, in pages.
    ///
    /// # Errors
    /// A zero or absurd dimension, a stride of 0.
    pub fn index_key(head_dim: u64, stride: u32, dtype: DType) -> Result<Self, HandlerError> {
        Self::vectors(Kind::IndexKey, head_dim, stride, dtype)
    }

    /// The latents of compressed attention: a vector for each `stride` tokens, in pages.
    ///
    /// # Errors
    /// A zero or absurd dimension, a stride of 0.
    pub fn compressed_latent(head_dim: u64, stride: u32, dtype: DType) -> Result<Self, HandlerError> {
        Self::vectors(Kind::CompressedLatent, head_dim, stride, dtype)
    }

    fn vectors(kind: Kind, head_dim: u64, stride: u32, dtype: DType) -> Result<Self, HandlerError> {
        Self::new(kind, Growth::Paged { stride, window: None }, vec![Dim::whole("head_dim", head_dim)], dtype, None)
    }

    /// Any other state of a fixed shape per sequence, which every token changes as a whole. What keeps a row for each of the last
    /// tokens is a [`ring`](Self::ring): it can go back behind drafted tokens without a copy.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn state(shape: &[u64], dtype: DType) -> Result<Self, HandlerError> {
        Self::new(Kind::State, Growth::PerSequence, numbered(shape), dtype, None)
    }

    /// The last rows of `width` elements, by position: one ring per sequence, whole on every rank. A token writes its own row and
    /// leaves the others; where it changes all of them, as one that moves them by one does, it is a [`state`](Self::state).
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn ring(ring: Ring, width: u64, dtype: DType) -> Result<Self, HandlerError> {
        refuse_empty(ring)?;
        let shape = vec![Dim::whole("rows", ring.rows(0)), Dim::whole("width", width)];
        Ok(Self::new(Kind::Ring, Growth::PerSequence, shape, dtype, None)?.with_recurrence(Recurrence::Ring(ring)))
    }

    /// How many rows it has, and why, if it is a ring.
    pub fn as_ring(&self) -> Option<Ring> {
        match self.recurrence {
            Some(Recurrence::Ring(ring)) => Some(ring),
            _ => None,
        }
    }

    /// The same ring with rows for tokens that are drafted; anything else as it is.
    ///
    /// # Errors
    /// An absurd dimension.
    pub fn with_drafted(&self, drafted: u64) -> Result<Self, HandlerError> {
        let Some(ring) = self.as_ring() else { return Ok(self.clone()) };
        let mut shape = self.shape.clone();
        if let Some(rows) = shape.first_mut() {
            rows.size = ring.rows(drafted);
        }
        let wide = Self::new(self.kind.clone(), self.growth, shape, self.dtype, self.layout)?;
        Ok(Self { recurrence: self.recurrence, ..wide })
    }

    /// The same convolution state over the channels of so many KV heads, which ranks divide with them; of 0 heads every
    /// rank holds all channels.
    ///
    /// # Errors
    /// Channels that are no whole number for each head.
    pub fn of_kv_heads(&self, heads: u64) -> Result<Self, HandlerError> {
        let mut shape = self.shape.clone();
        if let Some(channels) = shape.first_mut() {
            channels.split = if heads == 0 { Split::Whole } else { Split::KvChannels(heads) };
        }
        Self::new(self.kind.clone(), self.growth, shape, self.dtype, self.layout)
    }

    /// Per-token data outside pages: every slot holds `max_seq_len` entries of `token_shape`.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn unpaged(token_shape: &[u64], dtype: DType) -> Result<Self, HandlerError> {
        Self::new(Kind::Unpaged, Growth::PerSlotToken, numbered(token_shape), dtype, None)
    }

    /// The keys, values or latents of a layer of an exported graph: per-token data outside pages, whose tokens lie head
    /// by head as the graph has them, `[num_kv_heads, max_seq_len, head_dim]` in every slot.
    ///
    /// # Errors
    /// A zero or absurd dimension.
    pub fn static_cache(num_kv_heads: u64, head_dim: u64, dtype: DType) -> Result<Self, HandlerError> {
        let shape = vec![Dim::whole("num_kv_heads", num_kv_heads), Dim::whole("head_dim", head_dim)];
        Self::new(Kind::Unpaged, Growth::PerSlotToken, shape, dtype, Some(KvLayout::Hnd))
    }

    /// The speculative twin of a state: the same shape at each candidate position.
    ///
    /// `None` for what is no state of a sequence, and for a ring, which needs none.
    pub fn intermediate(&self) -> Option<Self> {
        let kind = match self.kind() {
            _ if self.as_ring().is_some() => return None,
            Kind::Ssm => Kind::IntermediateSsm,
            Kind::CausalConv => Kind::IntermediateCausalConv,
            _ if self.is_state() => Kind::IntermediateState,
            _ => return None,
        };
        Self::new(kind, Growth::PerDraftPosition, self.shape().to_vec(), self.dtype(), None).ok()
    }

    /// The same convolution state with a column for each candidate of a speculative step behind its own.
    ///
    /// # Errors
    /// An absurd dimension.
    pub fn with_candidates(&self, candidates: u64) -> Result<Self, HandlerError> {
        let mut shape = self.shape.clone();
        if let Some(columns) = shape.last_mut().filter(|dim| dim.name == OWN_COLUMNS) {
            *columns = Dim::whole(WITH_CANDIDATES, columns.size.saturating_add(candidates));
        }
        let wide = Self::new(self.kind.clone(), self.growth, shape, self.dtype, self.layout)?;
        Ok(Self { recurrence: self.recurrence, ..wide })
    }

    /// Tells whether a convolution's state has columns for the candidates of a speculative step.
    pub fn has_candidates(&self) -> bool {
        self.dim(WITH_CANDIDATES).is_some()
    }

    /// The same KV resource in another memory order.
    #[must_use]
    pub fn with_layout(self, layout: KvLayout) -> Self {
        Self { layout: Some(layout), ..self }
    }

    /// The same resource, stored in elements of another type.
    ///
    /// # Errors
    /// Bytes that cannot be counted.
    pub fn with_dtype(&self, dtype: DType) -> Result<Self, HandlerError> {
        let stored = Self::new(self.kind.clone(), self.growth, self.shape.clone(), dtype, self.layout)?;
        Ok(Self { recurrence: self.recurrence, ..stored })
    }

    /// The same paged resource, kept for the last `window` tokens only.
    ///
    /// # Errors
    /// A window of 0 tokens.
    pub fn with_window(self, window: u32) -> Result<Self, HandlerError> {
        let layout = self.layout();
        let (kind, growth, shape, dtype) = (self.kind, self.growth, self.shape, self.dtype);
        let growth = match growth {
            Growth::Paged { stride, .. } => Growth::Paged { stride, window: Some(window) },
            other => other,
        };
        Self::new(kind, growth, shape, dtype, layout)
    }

    /// The same paged resource, with one entry for every `stride` tokens.
    ///
    /// # Errors
    /// A stride of 0 tokens.
    pub fn with_stride(self, stride: u32) -> Result<Self, HandlerError> {
        let growth = match self.growth {
            Growth::Paged { window, .. } => Growth::Paged { stride, window },
            other => other,
        };
        Self::new(self.kind, growth, self.shape, self.dtype, self.layout)
    }

    /// The same KV resource with one tensor (`kv_factor` 1) or keys and values apart (2).
    ///
    /// # Errors
    /// Any other factor.
    pub fn with_kv_factor(self, kv_factor: u64) -> Result<Self, HandlerError> {
        if !(1..=2).contains(&kv_factor) {
            return Err(HandlerError::KvFactor(kv_factor));
        }
        let layout = self.layout();
        let (kind, growth, mut shape, dtype) = (self.kind, self.growth, self.shape, self.dtype);
        if let Some(dim) = shape.iter_mut().find(|dim| dim.name == "kv_factor") {
            dim.size = kv_factor;
        }
        Self::new(kind, growth, shape, dtype, layout)
    }
}

fn kv_shape(kv_factor: u64, num_kv_heads: u64, head_dim: u64) -> Vec<Dim> {
    vec![
        Dim::whole("kv_factor", kv_factor),
        Dim::split("num_kv_heads", num_kv_heads, Split::KvHeads),
        Dim::whole("head_dim", head_dim),
    ]
}

/// One tensor that ranks do not divide.
fn columns_shape(columns: u64, width: u64) -> Vec<Dim> {
    vec![Dim::whole("kv_factor", 1), Dim::whole("num_kv_heads", columns), Dim::whole("head_dim", width)]
}

fn numbered(shape: &[u64]) -> Vec<Dim> {
    shape.iter().enumerate().map(|(axis, &size)| Dim::whole(format!("dim{axis}"), size)).collect()
}
